"""power: what the controller may launch, and the timers that look after what runs."""

from __future__ import annotations

from pathlib import Path

from bootstrap.action import Action, write
from bootstrap.desired import Desired
from bootstrap.facts.model import Facts
from bootstrap.steps.step import Step
from infra.inventory import Node

FLEET = "/etc/muster/fleet.json"


def actions(facts: Facts, node: Node, desired: Desired) -> list[Action]:  # noqa: ARG001
    todo = write(facts, FLEET, desired.fleet)
    units = _units(desired.root)
    written = [a for unit in units for a in write(facts, f"/etc/systemd/system/{unit.name}", unit.read_bytes())]
    if written:
        timers = [unit.name for unit in units if unit.suffix == ".timer"]
        start = f"systemctl daemon-reload\nsystemctl enable -q --now {' '.join(timers)}"
        written.append(Action(f"start {', '.join(timers)}", start))
    return todo + written


def skip(facts: Facts, node: Node, desired: Desired) -> str:  # noqa: ARG001
    return "" if desired.fleet else "there is nothing to launch"


def _units(root: Path) -> list[Path]:
    return sorted(path for path in (root / "slurm" / "power").glob("muster-*") if path.suffix in (".service", ".timer"))


STEP = Step("power", "what may be launched", actions, roles=("controller",), skip=skip)
