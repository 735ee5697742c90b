"""Alerts: the program on the controller that reports drains, lost nodes and stuck queues to a webhook."""

from __future__ import annotations

from bootstrap.action import Action, enable_unit, remove_file, write_file
from bootstrap.changes import change_units
from bootstrap.desired import Desired
from bootstrap.facts.model import Facts
from bootstrap.program import pack_program
from bootstrap.steps.step import Step
from cluster.inventory import Node
from slurm.alerts import install

START = "import sys; from slurm.alerts.__main__ import main; sys.exit(main())\n"
SOURCES = ("control", "health", "rdma", "alerts")
_FOLDERS = f"install -d -o slurm -g slurm {install.STATE} {install.SPOOL}"
_START = f"{_FOLDERS}\n{enable_unit(install.NAME)}\nsystemctl daemon-reload\nsystemctl restart {install.NAME}"
_STOP = f"systemctl disable -q --now {install.NAME} || true"


def plan_alerts(facts: Facts, node: Node, desired: Desired) -> list[Action]:
    """Write the program with its settings, and start it; without a webhook, remove it."""
    webhook, spec = desired.secrets.webhook, desired.spec
    if spec.alerts.webhook and not webhook:
        return []  # a stack file has only the encrypted address, so what is installed must stay
    if not webhook:
        files = [action for path in (install.CONFIG, install.UNIT_PATH) for action in remove_file(facts, path)]
        return [Action(f"stop {install.NAME}", _STOP, changes=change_units(install.NAME)), *files] if files else []
    config = install.render_config(webhook, spec.name, spec.alerts.stuck_minutes * 60)
    todo = [
        *write_file(facts, install.PROGRAM, pack_program(desired.root, SOURCES, START)),
        *write_file(facts, install.CONFIG, config, 0o600, "slurm:slurm"),
        *write_file(facts, install.UNIT_PATH, install.UNIT),
    ]
    if todo or not (install.NAME in facts.active and install.NAME in facts.enabled):
        todo.append(Action(f"start {install.NAME}", _START, changes=change_units(install.NAME)))
    return todo


STEP = Step("alerts", "messages to a webhook", plan_alerts, roles=("controller",), units=(install.NAME,))
