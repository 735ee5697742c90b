"""Accounting on the controller: MariaDB and slurmdbd, so that `sacct` shows every job."""

from __future__ import annotations

from bootstrap.action import Action, digest, enable_unit, write_file, write_marker
from bootstrap.changes import DATABASE_STATE, SLURM_STATE, UNRECORDED, change_units
from bootstrap.desired import Desired
from bootstrap.facts.model import Facts
from bootstrap.steps.daemon import START_TIMEOUT_S, print_errors, write_key
from bootstrap.steps.step import Step
from cluster.inventory import Node

SLURMDBD_CONF = "/etc/slurm/slurmdbd.conf"
MARIADB_CONF = "/etc/mysql/mariadb.conf.d/90-muster.cnf"

# slurmdbd's recommended settings, for a database that only slurmdbd uses, over a socket on the same machine.
# With TLS, each start would first generate an RSA key, which takes seconds on a busy machine.
MARIADB_SETTINGS = """\
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
# Since MariaDB 11.6.2 the default is ON, with which a write conflict can end slurmdbd. Older versions ignore the line.
loose-innodb_snapshot_isolation=OFF
"""
MARIADB_MARKER = "mariadb"
MARIADB_DIGEST = digest(MARIADB_SETTINGS)


def plan_database(facts: Facts, node: Node, desired: Desired) -> list[Action]:
    """Configure MariaDB and start it without waiting, because that takes longest; `plan_accounting` waits for it."""
    todo = write_file(facts, MARIADB_CONF, MARIADB_SETTINGS)
    if todo or "mariadb" not in facts.active or facts.markers.get(MARIADB_MARKER) != MARIADB_DIGEST:
        changes = change_units("mariadb", trees=(SLURM_STATE, DATABASE_STATE))
        todo.append(Action("start MariaDB without waiting", "systemctl restart --no-block mariadb", changes=changes))
    return todo


def plan_accounting(facts: Facts, node: Node, desired: Desired) -> list[Action]:
    """Create the accounting database and start slurmdbd."""
    sql, conf = _sql(desired.secrets.db_password), desired.slurm_files[SLURMDBD_CONF]
    slurmdbd_digest = digest(sql, conf.content, desired.secrets.slurm_key)
    files = [*write_key(facts, desired), *write_file(facts, SLURMDBD_CONF, conf.content, conf.mode, conf.owner)]
    daemons = {"mariadb", "slurmdbd"}
    started = daemons <= facts.active and daemons <= facts.enabled
    expected_markers = {"slurmdbd": slurmdbd_digest, MARIADB_MARKER: MARIADB_DIGEST}
    if not files and started and expected_markers.items() <= facts.markers.items():
        return []
    create = (
        f"systemctl start mariadb\nhead -c {len(sql.encode())} | mariadb\n"
        f"{write_marker(MARIADB_MARKER, MARIADB_DIGEST)}"
    )
    start = (
        f"systemctl restart slurmdbd || {{ {print_errors('slurmdbd')}; exit 1; }}\n"
        f"{write_marker('slurmdbd', slurmdbd_digest)}"
    )
    enable = f"{enable_unit('mariadb')}\n{enable_unit('slurmdbd')}"
    mariadb_log, slurmdbd_log = "journalctl -u mariadb", "/var/log/slurm/slurmdbd.log"
    changes = change_units("mariadb", "slurmdbd", trees=(SLURM_STATE, DATABASE_STATE))
    return [
        Action("enable MariaDB and slurmdbd", enable, changes=changes),
        *files,
        Action(
            "create the accounting database", create, sql.encode(), START_TIMEOUT_S, mariadb_log, changes=UNRECORDED
        ),
        Action("start slurmdbd", start, timeout=START_TIMEOUT_S, log=slurmdbd_log, changes=UNRECORDED),
    ]


def _sql(password: str) -> str:
    return (
        "create database if not exists slurm_acct_db;\n"
        f"create or replace user slurm@localhost identified by '{password}';\n"
        "grant all on slurm_acct_db.* to slurm@localhost;\n"
    )


DATABASE_STEP = Step("database", "MariaDB, started early", plan_database, roles=("controller",), units=("mariadb",))
STEP = Step(
    "accounting",
    "accounting database and slurmdbd",
    plan_accounting,
    roles=("controller",),
    units=("mariadb", "slurmdbd"),
)
