"""Power saving: the fleet that the controller may launch, the programs that Slurm runs, and the sweep's timer.

The timer starts last, after the check of the controller. The sweep launches nodes that are missing, and they would be
billed while the controller is still being set up, or although its set-up failed.
"""

from __future__ import annotations

import shlex

from bootstrap.action import Action, digest, write_file, write_marker
from bootstrap.bundle import INSTALLED, INSTALLED_PYTHON
from bootstrap.desired import Desired
from bootstrap.facts.model import Facts
from bootstrap.steps.step import Step
from cluster.inventory import Node
from slurm.config import topology
from slurm.config.blocks import has_blocks
from slurm.config.render import launched_nodes
from slurm.hostlist import hostlist
from slurm.power import install

TOPOLOGY = f"/etc/slurm/{topology.NAME}"
_MARKER = "topology"
_START_TIMER = f"systemctl daemon-reload\nsystemctl enable -q --now {install.TIMER}"


def plan_power(facts: Facts, node: Node, desired: Desired) -> list[Action]:
    """Write the fleet, the resume and suspend programs, and the first topology."""
    todo = write_file(facts, install.FLEET, desired.fleet)
    wait_s = install.limit_wait(desired.spec.slurm.resume_s, desired.spec.slurm.extra)
    for path, text in install.write_scripts(INSTALLED_PYTHON, INSTALLED, desired.launcher, wait_s).items():
        todo += write_file(facts, path, text, 0o755)
    if TOPOLOGY in desired.slurm_files:
        todo += _plan_topology(facts, desired)
    if todo:
        todo.append(Action(f"create {install.STATE}", f"install -d -o slurm -g slurm {install.STATE}"))
    return todo


def plan_sweep(facts: Facts, node: Node, desired: Desired) -> list[Action]:
    """Write the units of the sweep and start its timer."""
    unit_files = install.write_units(INSTALLED_PYTHON, INSTALLED, desired.launcher)
    todo = [action for path, text in unit_files.items() for action in write_file(facts, path, text)]
    if todo:
        todo.append(Action(f"start {install.TIMER}", _START_TIMER))
    return todo


def _plan_topology(facts: Facts, desired: Desired) -> list[Action]:
    """Write the first topology.conf; afterwards the sweep maintains it from the places of running nodes.

    If the set of nodes changes, the file is adapted at once, because Slurm rejects jobs if it does not list every node.
    Blocks follow from the inventory alone, so that nobody else maintains them.
    """
    text = desired.slurm_files[TOPOLOGY].content
    if has_blocks(text):
        todo = write_file(facts, TOPOLOGY, text, owner="slurm:slurm")
        # Recorded instead of the nodes: if the cluster loses its UltraServers, the file becomes one of switches again.
        record = Action("record the blocks of topology.conf", write_marker(_MARKER, digest(text)))
        return [*todo, record] if todo else []
    nodes = hostlist(launched_nodes(desired.inventory))
    if TOPOLOGY not in facts.files:
        todo = write_file(facts, TOPOLOGY, text, owner="slurm:slurm")
        return [*todo, Action("record the nodes of topology.conf", write_marker(_MARKER, digest(nodes)))]
    if facts.markers.get(_MARKER) == digest(nodes):
        return []
    adapt = f"cd {INSTALLED} && {INSTALLED_PYTHON} -m slurm.power.topology {shlex.quote(nodes)}"
    return [Action("adapt topology.conf to the nodes", f"{adapt}\n{write_marker(_MARKER, digest(nodes))}")]


def skip(facts: Facts, node: Node, desired: Desired) -> str:
    """Skip clusters that launch no nodes."""
    return "" if desired.fleet else "the cluster launches no nodes"


STEP = Step("power", "what may be launched, and how", plan_power, roles=("controller",), skip=skip)
SWEEP_STEP = Step("sweep", "the timer of the sweep", plan_sweep, roles=("controller",), skip=skip)
