"""accounting: the database and slurmdbd on the controller, so that `sacct` knows every job."""

from __future__ import annotations

from bootstrap.action import Action, digest, enable, mark, write
from bootstrap.desired import Desired
from bootstrap.facts.model import Facts
from bootstrap.steps import database
from bootstrap.steps.slurm_key import key, last_words
from bootstrap.steps.step import Step
from cluster.inventory import Node

CONF = "/etc/slurm/slurmdbd.conf"
START_S = 60.0


def actions(facts: Facts, node: Node, desired: Desired) -> list[Action]:  # noqa: ARG001
    sql, conf = _sql(desired.secrets.db_password), desired.slurm_files[CONF]
    wanted = digest(sql, conf.content, desired.secrets.slurm_key)
    files = [*key(facts, desired), *write(facts, CONF, conf.content, conf.mode, conf.owner)]
    started = not {"mariadb", "slurmdbd"} - facts.active and not {"mariadb", "slurmdbd"} - facts.enabled
    told = facts.markers.get("slurmdbd") == wanted and facts.markers.get(database.MARKER) == database.WANTED
    if not files and started and told:
        return []
    make = f"systemctl start mariadb\nhead -c {len(sql.encode())} | mariadb\n{mark(database.MARKER, database.WANTED)}"
    daemon = f"systemctl restart slurmdbd || {{ {last_words('slurmdbd')}; exit 1; }}\n{mark('slurmdbd', wanted)}"
    return [
        Action("enable MariaDB and slurmdbd", f"{enable('mariadb')}\n{enable('slurmdbd')}"),
        *files,
        Action("make the accounting database", make, sql.encode(), START_S, "journalctl -u mariadb"),
        Action("start slurmdbd", daemon, timeout=START_S, log="/var/log/slurm/slurmdbd.log"),
    ]


def _sql(password: str) -> str:
    return (
        "create database if not exists slurm_acct_db;\n"
        f"create or replace user slurm@localhost identified by '{password}';\n"
        "grant all on slurm_acct_db.* to slurm@localhost;\n"
    )


STEP = Step("accounting", "accounting database and slurmdbd", actions, roles=("controller",))
