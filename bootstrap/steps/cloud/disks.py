"""Disks of a cloud machine: its own NVMe disks as scratch space, and the controller's persistent state volume."""

from __future__ import annotations

from pathlib import Path

from bootstrap.action import Action, write_file
from bootstrap.desired import Desired
from bootstrap.facts.model import Facts
from bootstrap.steps.cloud.at_boot import run_at_boot
from bootstrap.steps.step import Step
from cluster.inventory import Node
from slurm.power import install

SCRIPTS = Path(__file__).parents[2] / "scripts"
SCRATCH_SCRIPT = (SCRIPTS / "scratch.sh").read_text()
SCRATCH_MOUNT = "/local"
SCRATCH_PACKAGES = ("mdadm", "xfsprogs")
SCRATCH_TIMEOUT_S = 300.0

STATE_SCRIPT = (SCRIPTS / "state-volume.sh").read_text()
STATE_MOUNTS = ("/state", "/var/lib/mysql", "/var/lib/slurm/slurmctld", install.STATE)
STATE_TIMEOUT_S = 420.0
# Without the volume these daemons would start with an empty queue and kill running jobs as unknown.
REQUIRE_STATE = """\
[Unit]
Requires=muster-state.service
After=muster-state.service
"""


def plan_scratch(facts: Facts, node: Node, desired: Desired) -> list[Action]:
    """Mount the machine's own disks as one fast filesystem at /local; its data is lost with the machine."""
    model = desired.cloud.scratch_disk_model if desired.cloud else ""
    script = SCRATCH_SCRIPT.replace("@MODEL@", model)
    return run_at_boot(
        facts,
        "scratch",
        "Stripe over the machine's own disks",
        script,
        done=SCRATCH_MOUNT in facts.mounts,
        timeout=SCRATCH_TIMEOUT_S,
    )


def skip_scratch(facts: Facts, node: Node, desired: Desired) -> str:
    """Skip machines without local disks."""
    model = desired.cloud.scratch_disk_model if desired.cloud else ""
    return "" if any(disk.model == model for disk in facts.disks) else "the machine has no disks of its own"


def plan_state(facts: Facts, node: Node, desired: Desired) -> list[Action]:
    """Put queue and accounting on a volume that outlives the controller, so that a new controller keeps the jobs."""
    volume = (desired.cloud and desired.cloud.state_volume) or ""
    requirements = [
        action
        for unit in ("mariadb", "slurmctld")
        for action in write_file(facts, f"/etc/systemd/system/{unit}.service.d/muster-state.conf", REQUIRE_STATE)
    ]
    mount = run_at_boot(
        facts,
        "state",
        "Volume of the controller's state",
        STATE_SCRIPT.replace("@VOLUME@", volume),
        done=all(path in facts.mounts for path in STATE_MOUNTS),
        timeout=STATE_TIMEOUT_S,
        fix=f"check that {volume} is attached to this machine, then run again",
    )
    return [*requirements, *mount]


def skip_state(facts: Facts, node: Node, desired: Desired) -> str:
    """Skip clusters without a state volume."""
    return "" if desired.cloud and desired.cloud.state_volume else "the cluster has no state volume"


def _list_scratch_packages(node: Node) -> tuple[str, ...]:
    return SCRATCH_PACKAGES


SCRATCH_STEP = Step(
    "scratch",
    "the machine's own disks at /local",
    plan_scratch,
    skip=skip_scratch,
    units=("muster-scratch",),
    packages=_list_scratch_packages,
)
STATE_STEP = Step(
    "state",
    "queue and accounting on their own volume",
    plan_state,
    roles=("controller",),
    skip=skip_state,
    units=("muster-state",),
)
