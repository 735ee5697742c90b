"""database: MariaDB's start takes longest of all; set off before anything else, waited for by accounting."""

from __future__ import annotations

from bootstrap.action import Action, digest, write
from bootstrap.desired import Desired
from bootstrap.facts.model import Facts
from bootstrap.steps.step import Step
from cluster.inventory import Node

CONF = "/etc/mysql/mariadb.conf.d/90-muster.cnf"

# slurmdbd's recommendation, for a database that only slurmdbd on the same machine talks to, over a socket.
# With TLS on, each start makes an RSA key first: seconds on a busy machine.
SETTINGS = """\
# Written by muster.
[client]
skip-ssl

[mariadbd]
skip-networking
skip-ssl
skip-log-bin
skip-name-resolve
innodb_buffer_pool_size=128M
innodb_lock_wait_timeout=900
innodb_flush_log_at_trx_commit=2
"""
MARKER = "mariadb"
WANTED = digest(SETTINGS)


def actions(facts: Facts, node: Node, desired: Desired) -> list[Action]:  # noqa: ARG001
    todo = write(facts, CONF, SETTINGS)
    if todo or "mariadb" not in facts.active or facts.markers.get(MARKER) != WANTED:
        todo.append(Action("set off MariaDB", "systemctl restart --no-block mariadb"))
    return todo


STEP = Step("database", "MariaDB, set off early", actions, roles=("controller",))
