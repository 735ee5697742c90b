"""Power saving: the fleet that the controller may launch, the programs that Slurm runs, and the sweep's timer."""

from __future__ import annotations

import shlex

from bootstrap.action import Action, digest, write_file, write_marker
from bootstrap.bundle import INSTALLED, INSTALLED_PYTHON
from bootstrap.desired import Desired
from bootstrap.facts.model import Facts
from bootstrap.steps.step import Step
from cluster.inventory import Node
from slurm.config import topology
from slurm.config.render import launched_nodes
from slurm.hostlist import hostlist
from slurm.power import install

TOPOLOGY = f"/etc/slurm/{topology.NAME}"
_MARKER = "topology"


def plan_power(facts: Facts, node: Node, desired: Desired) -> list[Action]:  # noqa: ARG001
    """Write the fleet, the resume and suspend programs, the first topology, and start the timer."""
    todo = write_file(facts, install.FLEET, desired.fleet)
    for path, text in install.write_scripts(INSTALLED_PYTHON, INSTALLED, desired.launcher).items():
        todo += write_file(facts, path, text, 0o755)
    if TOPOLOGY in desired.slurm_files:
        todo += _plan_topology(facts, desired)
    unit_files = install.write_units(INSTALLED_PYTHON, INSTALLED, desired.launcher)
    units = [action for path, text in unit_files.items() for action in write_file(facts, path, text)]
    if units:
        folder = f"install -d -o slurm -g slurm {install.STATE}"
        start = f"{folder}\nsystemctl daemon-reload\nsystemctl enable -q --now {install.TIMER}"
        units.append(Action(f"start {install.TIMER}", start))
    return todo + units


def _plan_topology(facts: Facts, desired: Desired) -> list[Action]:
    """Write the first topology.conf; afterwards the sweep maintains it from the places of running nodes.

    If the set of nodes changes, the file is adapted at once, because Slurm rejects jobs if it does not list every node.
    """
    nodes = hostlist(launched_nodes(desired.inventory))
    if TOPOLOGY not in facts.files:
        todo = write_file(facts, TOPOLOGY, desired.slurm_files[TOPOLOGY].content, owner="slurm:slurm")
        return [*todo, Action("record the nodes of topology.conf", write_marker(_MARKER, digest(nodes)))]
    if facts.markers.get(_MARKER) == digest(nodes):
        return []
    adapt = f"cd {INSTALLED} && {INSTALLED_PYTHON} -m slurm.power.topology {shlex.quote(nodes)}"
    return [Action("adapt topology.conf to the nodes", f"{adapt}\n{write_marker(_MARKER, digest(nodes))}")]


def skip(facts: Facts, node: Node, desired: Desired) -> str:  # noqa: ARG001
    """Skip clusters that launch no nodes."""
    return "" if desired.fleet else "the cluster launches no nodes"


STEP = Step("power", "what may be launched, and how", plan_power, roles=("controller",), skip=skip)
