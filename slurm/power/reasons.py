"""Why a node is away, in the words that Slurm shows: whoever reads one knows who gave it and what comes next."""

from __future__ import annotations

from slurm.health import drain

HEALTH = drain.PREFIX
OURS = "muster: "
CAPACITY = f"{OURS}capacity: "
REMOVED = f"{OURS}the group is being removed"
UNWANTED = f"{OURS}nobody waits for it any more"
LOST = f"{OURS}its machine is gone"
NEVER_CAME = f"{OURS}its machine went away while it started"
SET_UP = f"{OURS}set-up: "
BUDGET = f"{OURS}budget: "
# slurmctld's own words for a node that fell silent or never came.
SILENT = "Not responding"
SLURMS = (SILENT, "ResumeTimeout reached")


def given_by_us(reason: str) -> bool:
    return reason.startswith((OURS, HEALTH))


def may_be_replaced(reason: str) -> bool:
    """A person's reason keeps a node as it is, whatever its state."""
    return given_by_us(reason) or reason.startswith(SLURMS)


def set_up_failed(step: str, line: str) -> str:
    return f"{SET_UP}{step}: {' '.join(line.split())}"[: drain.LONGEST]


def capacity(instance_type: str, found: list[str]) -> str:
    """`found` says for each zone and purchase what was to be had there."""
    return f"{CAPACITY}{instance_type}: {', '.join(found)}"[: drain.LONGEST]
