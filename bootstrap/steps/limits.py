"""limits: what RDMA and large jobs need, and daemons that come back after a crash."""

from __future__ import annotations

from bootstrap.action import Action, digest, mark, write
from bootstrap.desired import Desired
from bootstrap.facts.model import Facts
from bootstrap.steps.hosts import UNIT
from bootstrap.steps.step import Step
from cluster.inventory import Node, Role

LIMITS = """\
# Written by muster: RDMA pins memory, and a rank with many peers opens many sockets.
* soft memlock unlimited
* hard memlock unlimited
* soft nofile 65536
* hard nofile 131072
"""

# Debian's units lack a Restart. A daemon that lacks its configuration would otherwise be started for ever.
RESTART = """\
[Unit]
StartLimitIntervalSec=60
StartLimitBurst=5

[Service]
Restart=on-failure
RestartSec=1
"""

DAEMONS: dict[Role, tuple[str, ...]] = {
    "controller": ("slurmctld", "slurmdbd"),
    "login": ("sackd",),
    "compute": ("slurmd",),
}


def actions(facts: Facts, node: Node, desired: Desired) -> list[Action]:  # noqa: ARG001
    todo = [
        action
        for unit in DAEMONS[node.role]
        for action in write(facts, f"/etc/systemd/system/{unit}.service.d/muster.conf", RESTART)
    ]
    wanted = digest(RESTART, UNIT)
    if todo or facts.markers.get("systemd") != wanted:
        loaded = {*DAEMONS[node.role], "muster-hosts"} & facts.loaded
        reload = "systemctl daemon-reload\n" if loaded else ""
        todo.append(Action("tell systemd", f"{reload}{mark('systemd', wanted)}"))
    # Where limits may not be raised (a container without CAP_SYS_RESOURCE), PAM would refuse the login.
    if not facts.container:
        todo += write(facts, "/etc/security/limits.d/muster.conf", LIMITS)
    return todo


STEP = Step("limits", "memlock, open files, restart on failure", actions)
