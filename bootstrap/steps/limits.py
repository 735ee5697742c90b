"""Limits: higher limits for RDMA and large jobs, and automatic restarts of daemons that crash."""

from __future__ import annotations

from bootstrap.action import Action, digest, write_file, write_marker
from bootstrap.changes import UNRECORDED
from bootstrap.desired import Desired
from bootstrap.facts.model import Facts
from bootstrap.steps.daemon import DAEMONS
from bootstrap.steps.hosts import UNIT
from bootstrap.steps.step import Step
from cluster.inventory import Node

LIMITS = """\
# Written by muster: RDMA pins memory, and a rank with many peers opens many sockets.
* soft memlock unlimited
* hard memlock unlimited
* soft nofile 65536
* hard nofile 131072
"""

# Debian's units have no Restart. The burst limit stops restarting a daemon that has no configuration yet.
RESTART = """\
[Unit]
StartLimitIntervalSec=60
StartLimitBurst=5

[Service]
Restart=on-failure
RestartSec=1
"""
# When slurmd stops, it waits for each job that is ending. The job's processes wait for slurmd, which signs their
# messages, so slurmd uses a whole core until systemd kills it: after 90 s by default, when the node is long down.
# Killing slurmd alone is harmless: jobs go on, and the next slurmd takes them over.
STOP_TIMEOUT = "TimeoutStopSec=10\n"


def plan_limits(facts: Facts, node: Node, desired: Desired) -> list[Action]:
    """Write when systemd restarts and kills this role's daemons; raise the limits unless the node is a container."""
    todo = [
        action
        for unit in DAEMONS[node.role]
        for action in write_file(facts, f"/etc/systemd/system/{unit}.service.d/muster.conf", unit_policy(unit))
    ]
    units_digest = digest(*map(unit_policy, DAEMONS[node.role]), UNIT)
    if todo or facts.markers.get("systemd") != units_digest:
        loaded = {*DAEMONS[node.role], "muster-hosts"} & facts.loaded
        reload = "systemctl daemon-reload\n" if loaded else ""
        script = f"{reload}{write_marker('systemd', units_digest)}"
        todo.append(Action("reload systemd's units", script, changes=UNRECORDED))
    # In a container without CAP_SYS_RESOURCE, limits cannot be raised, and PAM would reject the login.
    if not facts.container:
        todo += write_file(facts, "/etc/security/limits.d/muster.conf", LIMITS)
    return todo


def unit_policy(unit: str) -> str:
    """Return the drop-in that says when systemd restarts and kills a daemon."""
    return RESTART + STOP_TIMEOUT if unit == "slurmd" else RESTART


STEP = Step(
    "limits",
    "memlock, open files, restart on failure",
    plan_limits,
    units=("muster-hosts", *(unit for units in DAEMONS.values() for unit in units)),
)
