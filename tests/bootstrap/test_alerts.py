"""The alerts step: nothing without a webhook; with one, a program, a file that only Slurm's user reads, and a unit."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from bootstrap.facts.model import Facts, FileFact
from bootstrap.program import pack_program
from bootstrap.steps import alerts
from slurm.alerts import install
from tests.bootstrap.clusters import desired

ROOT = Path(__file__).parents[2]
ADDRESS = "https://hooks.example.com/services/T0/secret-part"


def test_without_a_webhook_nothing_is_installed_and_an_old_program_is_removed() -> None:
    target = desired()
    controller = target.inventory.controller
    assert alerts.plan_alerts(Facts(), controller, target) == []
    before = Facts(files={path: FileFact("x", 0o644, "root:root") for path in (install.CONFIG, install.UNIT_PATH)})
    titles = [action.title for action in alerts.plan_alerts(before, controller, target)]
    assert titles == [f"stop {install.NAME}", f"remove {install.CONFIG}", f"remove {install.UNIT_PATH}"]


def test_an_encrypted_address_leaves_what_is_installed() -> None:
    target = desired()
    encrypted = target.spec.alerts.model_copy(update={"webhook": ADDRESS}).without_secret()
    target = replace(target, spec=target.spec.model_copy(update={"alerts": encrypted}))
    before = Facts(files={path: FileFact("x", 0o644, "root:root") for path in (install.CONFIG, install.UNIT_PATH)})
    assert alerts.plan_alerts(before, target.inventory.controller, target) == []


def test_the_address_is_only_in_a_file_of_slurms_user() -> None:
    target = desired()
    target = replace(target, secrets=replace(target.secrets, webhook=ADDRESS))
    actions = alerts.plan_alerts(Facts(), target.inventory.controller, target)
    assert [action.title for action in actions] == [
        f"write {install.PROGRAM}",
        f"write {install.CONFIG}",
        f"write {install.UNIT_PATH}",
        f"start {install.NAME}",
    ]
    config = actions[1]
    assert json.loads(config.data) == {"webhook": ADDRESS, "cluster": target.spec.name, "stuck_s": 1800}
    assert "umask 077" in config.script
    assert f"chown slurm:slurm {install.CONFIG}.muster-new" in config.script
    assert not any("secret-part" in action.script + action.title for action in actions)
    assert "secret-part" not in repr(target.secrets) + repr(actions)


def test_the_program_needs_nothing_of_ours(tmp_path: Path) -> None:
    program = tmp_path / "alerts.pyz"
    program.write_bytes(pack_program(ROOT, alerts.SOURCES, alerts.START))
    done = subprocess.run([sys.executable, "-I", "-S", str(program)], capture_output=True, text=True, cwd=tmp_path)
    assert f"No such file or directory: '{install.CONFIG}'" in done.stderr
