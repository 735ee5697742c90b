"""Limits: higher limits for RDMA and large jobs, and automatic restarts of daemons that crash."""

from __future__ import annotations

from bootstrap.action import Action, digest, write_file, write_marker
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


def plan_limits(facts: Facts, node: Node, desired: Desired) -> list[Action]:
    """Write the restart policy of this role's daemons, and raise the limits on machines that are not containers."""
    todo = [
        action
        for unit in DAEMONS[node.role]
        for action in write_file(facts, f"/etc/systemd/system/{unit}.service.d/muster.conf", RESTART)
    ]
    units_digest = digest(RESTART, UNIT)
    if todo or facts.markers.get("systemd") != units_digest:
        loaded = {*DAEMONS[node.role], "muster-hosts"} & facts.loaded
        reload = "systemctl daemon-reload\n" if loaded else ""
        todo.append(Action("reload systemd's units", f"{reload}{write_marker('systemd', units_digest)}"))
    # In a container without CAP_SYS_RESOURCE, limits cannot be raised, and PAM would reject the login.
    if not facts.container:
        todo += write_file(facts, "/etc/security/limits.d/muster.conf", LIMITS)
    return todo


STEP = Step(
    "limits",
    "memlock, open files, restart on failure",
    plan_limits,
    units=("muster-hosts", *(unit for units in DAEMONS.values() for unit in units)),
)
