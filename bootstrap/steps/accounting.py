"""accounting: MariaDB and slurmdbd on the controller, so that `sacct` knows every job."""

from __future__ import annotations

from bootstrap.action import Action, digest, enable, mark, write
from bootstrap.desired import Desired
from bootstrap.facts.model import Facts
from bootstrap.steps.slurm_key import key, last_words
from bootstrap.steps.step import Step
from infra.inventory import Node

CONF = "/etc/slurm/slurmdbd.conf"
DATABASE_CONF = "/etc/mysql/mariadb.conf.d/90-muster.cnf"

# slurmdbd's recommendation, for a database of one cluster that only slurmdbd on the same machine talks to.
DATABASE = """\
# Written by muster.
[mariadbd]
skip-networking
skip-log-bin
skip-name-resolve
innodb_buffer_pool_size=128M
innodb_lock_wait_timeout=900
innodb_flush_log_at_trx_commit=2
"""
START_S = 60.0


def early(facts: Facts, node: Node, desired: Desired) -> list[Action]:  # noqa: ARG001
    """MariaDB's start, which takes longest, set off before anything else and not waited for."""
    todo = write(facts, DATABASE_CONF, DATABASE)
    if todo or "mariadb" not in facts.active or facts.markers.get("mariadb") != digest(DATABASE):
        todo.append(Action("set off MariaDB", "systemctl restart --no-block mariadb"))
    return todo


def actions(facts: Facts, node: Node, desired: Desired) -> list[Action]:
    sql, conf = _sql(desired.secrets.db_password), desired.slurm_files[CONF]
    wanted = digest(sql, conf.content, desired.secrets.slurm_key)
    files = [*key(facts, desired), *write(facts, CONF, conf.content, conf.mode, conf.owner)]
    started = not {"mariadb", "slurmdbd"} - facts.active and not {"mariadb", "slurmdbd"} - facts.enabled
    if not files and started and facts.markers.get("slurmdbd") == wanted and not early(facts, node, desired):
        return []
    database = f"systemctl start mariadb\nhead -c {len(sql.encode())} | mariadb\n{mark('mariadb', digest(DATABASE))}"
    daemon = f"systemctl restart slurmdbd || {{ {last_words('slurmdbd')}; exit 1; }}\n{mark('slurmdbd', wanted)}"
    return [
        Action("enable MariaDB and slurmdbd", f"{enable('mariadb')}\n{enable('slurmdbd')}"),
        *files,
        Action("make the accounting database", database, sql.encode(), START_S, "journalctl -u mariadb"),
        Action("start slurmdbd", daemon, timeout=START_S, log="/var/log/slurm/slurmdbd.log"),
    ]


def _sql(password: str) -> str:
    return (
        "create database if not exists slurm_acct_db;\n"
        f"create or replace user slurm@localhost identified by '{password}';\n"
        "grant all on slurm_acct_db.* to slurm@localhost;\n"
    )


STEP = Step("accounting", "MariaDB and slurmdbd", actions, roles=("controller",))
