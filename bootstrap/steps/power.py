"""power: what the controller may launch, the programs by which Slurm does it, the timer that looks after what runs."""

from __future__ import annotations

from bootstrap.action import Action, write
from bootstrap.desired import Desired
from bootstrap.facts.model import Facts
from bootstrap.steps.step import Step
from infra.inventory import Node
from slurm.power import programs, topology_file

FLEET = "/etc/muster/fleet.json"
TOPOLOGY = f"/etc/slurm/{topology_file.NAME}"
# A link that is moved when a new bundle has been unpacked; programs that run keep the one they started with.
ROOT = "/opt/muster/current"
PYTHON = f"{ROOT}/venv/bin/python"


def actions(facts: Facts, node: Node, desired: Desired) -> list[Action]:  # noqa: ARG001
    todo = write(facts, FLEET, desired.fleet)
    for path, text in programs.scripts(PYTHON, ROOT).items():
        todo += write(facts, path, text, 0o755)
    if TOPOLOGY in desired.slurm_files and TOPOLOGY not in facts.files:
        # Only the first one: from then on the sweep keeps it, and knows more.
        todo += write(facts, TOPOLOGY, desired.slurm_files[TOPOLOGY].content, owner="slurm:slurm")
    units = [a for path, text in programs.units(PYTHON, ROOT).items() for a in write(facts, path, text)]
    if units:
        own = f"install -d -o slurm -g slurm {programs.STATE}"
        start = f"{own}\nsystemctl daemon-reload\nsystemctl enable -q --now {programs.TIMER}"
        units.append(Action(f"start {programs.TIMER}", start))
    return todo + units


def skip(facts: Facts, node: Node, desired: Desired) -> str:  # noqa: ARG001
    return "" if desired.fleet else "there is nothing to launch"


STEP = Step("power", "what may be launched, and how", actions, roles=("controller",), skip=skip)
