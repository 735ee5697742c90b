"""power: what the controller may launch, the programs by which Slurm does it, the timer that looks after what runs."""

from __future__ import annotations

import shlex

from bootstrap.action import Action, digest, mark, write
from bootstrap.desired import Desired
from bootstrap.facts.model import Facts
from bootstrap.steps.step import Step
from cluster.inventory import Node
from slurm.config import topology
from slurm.config.render import launched_nodes
from slurm.hostlist import hostlist
from slurm.power import install

TOPOLOGY = f"/etc/slurm/{topology.NAME}"
# A link that is moved when a new bundle has been unpacked; programs that run keep the one they started with.
ROOT = "/opt/muster/current"
PYTHON = f"{ROOT}/venv/bin/python"
_MARKER = "topology"


def actions(facts: Facts, node: Node, desired: Desired) -> list[Action]:  # noqa: ARG001
    todo = write(facts, install.FLEET, desired.fleet)
    for path, text in install.write_scripts(PYTHON, ROOT, desired.launcher).items():
        todo += write(facts, path, text, 0o755)
    if TOPOLOGY in desired.slurm_files:
        todo += _topology(facts, desired)
    units = [
        action
        for path, text in install.write_units(PYTHON, ROOT, desired.launcher).items()
        for action in write(facts, path, text)
    ]
    if units:
        own = f"install -d -o slurm -g slurm {install.STATE}"
        start = f"{own}\nsystemctl daemon-reload\nsystemctl enable -q --now {install.TIMER}"
        units.append(Action(f"start {install.TIMER}", start))
    return todo + units


def _topology(facts: Facts, desired: Desired) -> list[Action]:
    """The first one; from then on the sweep keeps it, and knows more. Only for other nodes it is not waited for: Slurm
    would find no way to the new ones."""
    nodes = hostlist(launched_nodes(desired.inventory))
    if TOPOLOGY not in facts.files:
        todo = write(facts, TOPOLOGY, desired.slurm_files[TOPOLOGY].content, owner="slurm:slurm")
        return [*todo, Action("remember whom it has", mark(_MARKER, digest(nodes)))]
    if facts.markers.get(_MARKER) == digest(nodes):
        return []
    fit = f"cd {ROOT} && {PYTHON} -m slurm.power.topology {shlex.quote(nodes)}"
    return [Action("fit topology.conf to the nodes", f"{fit}\n{mark(_MARKER, digest(nodes))}")]


def skip(facts: Facts, node: Node, desired: Desired) -> str:  # noqa: ARG001
    return "" if desired.fleet else "there is nothing to launch"


STEP = Step("power", "what may be launched, and how", actions, roles=("controller",), skip=skip)
