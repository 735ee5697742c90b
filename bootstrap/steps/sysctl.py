"""sysctl: kernel settings for many peers, many neighbours and large writes."""

from __future__ import annotations

from bootstrap.action import Action, write
from bootstrap.desired import Desired
from bootstrap.facts.model import Facts
from bootstrap.steps.step import Step
from cluster.inventory import Node

CONF = "/etc/sysctl.d/60-muster.conf"
SETTINGS = """\
# Written by muster. Ranks that start together connect together; a large cluster has more neighbours than usual.
net.core.somaxconn = 65535
net.ipv4.tcp_max_syn_backlog = 65535
net.ipv4.neigh.default.gc_thresh1 = 0
net.ipv4.neigh.default.gc_thresh2 = 15360
net.ipv4.neigh.default.gc_thresh3 = 16384
net.core.rmem_max = 16777216
net.core.wmem_max = 16777216
# Checkpoints are written early and evenly, not in one burst.
vm.dirty_ratio = 5
vm.dirty_background_ratio = 3
vm.dirty_expire_centisecs = 1000
vm.vfs_cache_pressure = 50
# Libfabric copies between the processes of one node by ptrace's rights.
kernel.yama.ptrace_scope = 0
"""


def actions(facts: Facts, node: Node, desired: Desired) -> list[Action]:  # noqa: ARG001
    todo = write(facts, CONF, SETTINGS)
    if todo:
        # -e: a kernel built without one of them is no reason to stop.
        todo.append(Action("set kernel parameters", f"sysctl -q -e -p {CONF}"))
    return todo


def skip(facts: Facts, node: Node, desired: Desired) -> str:  # noqa: ARG001
    return "a container has its host's kernel" if facts.container else ""


STEP = Step("sysctl", "kernel parameters", actions, skip=skip)
