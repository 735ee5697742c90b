"""The reasons with which muster takes nodes out of service, as Slurm shows them, and which allow a new machine."""

from __future__ import annotations

from collections.abc import Sequence

from slurm.health import drain
from slurm.health.registry import helps_to_replace

HEALTH = drain.PREFIX
OURS = "muster: "
CAPACITY = f"{OURS}capacity: "
REMOVED = f"{OURS}the group is being removed"
HELD = f"{OURS}nothing was launched during an upgrade of Slurm"
CLOSED = f"{OURS}the group's partition is closed, its nodes failed to start"
UNWANTED = f"{OURS}no job is waiting for it any more"
LOST = f"{OURS}its machine is gone"
NEVER_CAME = f"{OURS}its machine disappeared while starting"
SET_UP = f"{OURS}set-up: "
BUDGET = f"{OURS}budget: "
TAKEN_BACK = f"{OURS}taken back: "
# Reasons that slurmctld itself sets on a node that stopped responding or never came up.
SILENT = "Not responding"
SLURMS = (SILENT, "ResumeTimeout reached")
# Reasons that slurmctld itself sets if a node cannot start or end a job; nobody else would resume the node.
JOB_FAULTS = (*drain.PROLOG_REASONS, "Job env setup error", "Kill task failed", "batch job complete failure")


def may_be_replaced(reason: str) -> bool:
    """Return whether a node with this reason may get a new machine.

    A node that a person drained may not, nor one whose problem would come back on another machine.
    """
    if reason.startswith(HEALTH):
        return helps_to_replace(reason)
    return reason.startswith((OURS, *SLURMS, *JOB_FAULTS))


def set_up_failed(step: str, line: str) -> str:
    """Return the reason of a node whose set-up failed in a step with this line."""
    return f"{SET_UP}{step}: {' '.join(line.split())}"[: drain.REASON_MAX_CHARS]


def no_capacity(availability: Sequence[tuple[str, str]]) -> str:
    """Return the reason of a node without a machine, with the availability of each type in each zone and purchase."""
    return f"{CAPACITY}{group_by_type(availability)}"[: drain.REASON_MAX_CHARS]


def group_by_type(availability: Sequence[tuple[str, str]]) -> str:
    """Return pairs of instance type and availability as text that names each type once."""
    types = dict.fromkeys(instance_type for instance_type, _ in availability)
    return "; ".join(
        f"{name}: {', '.join(text for instance_type, text in availability if instance_type == name)}" for name in types
    )
