"""Files in a home are written as its owner: root would follow any link that the owner created there."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from bootstrap.action import Action
from bootstrap.desired import Desired
from bootstrap.facts.collect import SCRIPT
from bootstrap.plan import plan_steps
from tests.bootstrap.clusters import bare_all, desired

AS_USER = '#!/bin/sh\necho "$1 $2 $3" >> "$RECORD"\nshift 3\nexec "$@"\n'


@pytest.fixture
def target(tmp_path: Path) -> Desired:
    cluster = desired()
    (tmp_path / "home" / "muster").mkdir(parents=True)
    return replace(cluster, inventory=cluster.inventory.model_copy(update={"mounts": (str(tmp_path),)}))


def key_action(target: Desired) -> Action:
    return next(
        a for a in plan_steps(bare_all(target), target)["controller"]["ssh"].actions if "key of muster" in a.title
    )


def run(action: Action, folder: Path) -> subprocess.CompletedProcess[str]:
    (folder / "runuser").write_text(AS_USER)
    (folder / "runuser").chmod(0o755)
    env = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "RECORD": str(folder / "record")}
    return subprocess.run(
        ["sh", "-ec", action.script], env=env, capture_output=True, text=True, stdin=subprocess.DEVNULL
    )


def test_a_users_key_opens_the_users_account_and_is_added_once(target: Desired, tmp_path: Path) -> None:
    for _ in range(2):
        done = run(key_action(target), tmp_path)
        assert done.returncode == 0, done.stderr
    folder = tmp_path / "home" / "muster" / ".ssh"
    assert (folder / "authorized_keys").read_text() == (folder / "id_ed25519.pub").read_text()
    assert (folder / "authorized_keys").stat().st_mode & 0o777 == 0o600
    assert folder.stat().st_mode & 0o777 == 0o700


def test_root_writes_nothing_into_a_home(target: Desired, tmp_path: Path) -> None:
    run(key_action(target), tmp_path)
    assert (tmp_path / "record").read_text() == "-u muster --\n"
    before, _, _ = key_action(target).script.partition("runuser -u muster -- sh")
    assert before == "cd /\n"
    home = next(a for a in plan_steps(bare_all(target), target)["controller"]["users"].actions if "home" in a.title)
    path = f"{tmp_path}/home/muster"
    assert home.script.splitlines() == [
        f"mkdir -p {path}",
        f"chown -hR 2000:2000 {path}",
        "cd /",
        f"runuser -u muster -- cp -an /etc/skel/. {path}/",
        f"chmod 750 {path}",
    ]


def test_facts_are_read_without_temporary_files() -> None:
    assert "/tmp" not in SCRIPT
