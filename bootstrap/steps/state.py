"""state: the queue and the accounts on a volume that outlives the controller; the next one goes on with the jobs."""

from __future__ import annotations

from pathlib import Path

from bootstrap.action import Action, write
from bootstrap.desired import Desired
from bootstrap.facts.model import Facts
from bootstrap.steps.at_boot import at_boot
from bootstrap.steps.step import Step
from cluster.inventory import Node
from slurm.power import install

SCRIPT = (Path(__file__).parent.parent / "scripts" / "state-volume.sh").read_text()
PLACES = ("/state", "/var/lib/mysql", "/var/lib/slurm/slurmctld", install.STATE)
WAIT_S = 420.0

# Without the volume they would start with an empty queue, and running jobs would be killed as unknown.
REQUIRE = """\
[Unit]
Requires=muster-state.service
After=muster-state.service
"""


def actions(facts: Facts, node: Node, desired: Desired) -> list[Action]:  # noqa: ARG001
    volume = (desired.cloud and desired.cloud.state_volume) or ""
    units = [
        action
        for unit in ("mariadb", "slurmctld")
        for action in write(facts, f"/etc/systemd/system/{unit}.service.d/muster-state.conf", REQUIRE)
    ]
    done = all(place in facts.mounts for place in PLACES)
    fix = f"look whether {volume} is attached to this machine; then run again"
    script = SCRIPT.replace("@VOLUME@", volume)
    return [
        *units,
        *at_boot(facts, "state", "Volume of the controller's state", script, done=done, timeout=WAIT_S, fix=fix),
    ]


def skip(facts: Facts, node: Node, desired: Desired) -> str:  # noqa: ARG001
    return "" if desired.cloud and desired.cloud.state_volume else "the cluster has no state volume"


STEP = Step("state", "queue and accounts on their own volume", actions, roles=("controller",), skip=skip)
