"""A target in one folder outside the package works with every command and the real engine."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness import Stack

FOLDER = Path(__file__).parent
SPEC = {
    "name": "plain",
    "target": "shelf",
    "groups": {"work": {"count": 2}},
    "storage": {"shared": {"kind": "existing"}},
    "login": {"enabled": False},
    "shelf": {"board": 10},
}
pytestmark = pytest.mark.engine


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Stack]:
    created = Stack("plain", tmp_path, dict(SPEC), env={"PYTHONPATH": str(FOLDER)})
    yield created
    created.muster("teardown", "--yes", "--force", check=False)


def test_error_lists_the_target_among_the_allowed(tmp_path: Path) -> None:
    stack = Stack("plain", tmp_path, {**SPEC, "target": "clouds"}, env={"PYTHONPATH": str(FOLDER)})
    refused = stack.muster("check", check=False)
    assert '"clouds" is not one of aws, azure, hosts, local, nebius, shelf' in refused.stderr


def test_rules_and_section_of_the_target_are_checked(tmp_path: Path) -> None:
    bad = {**SPEC, "groups": {"work": {"count": 9}}, "shelf": {"board": 99}}
    stack = Stack("plain", tmp_path, bad, env={"PYTHONPATH": str(FOLDER)})
    assert "99 is not a whole number from 0 to 19" in stack.muster("check", check=False).stderr
    stack.spec = {**SPEC, "groups": {"work": {"count": 9}}}
    assert "9 machines do not fit on a board; allowed: 0 to 8" in stack.muster("check", check=False).stderr
    stack.spec = {**SPEC, "groups": {"work": {"min": 0, "max": 2}}}
    assert "cannot scale between min and max; targets that can: aws" in stack.muster("check", check=False).stderr


@pytest.mark.nightly
def test_cluster_from_check_to_teardown(stack: Stack) -> None:
    assert "cluster plain, 3 nodes, 1.50 USD per hour on target shelf" in stack.muster("check").stdout
    assert json.loads(stack.muster("cost", "--json").stdout)["usd_per_hour"] == {"min": 1.5, "max": 1.5}
    assert "ready: 3 nodes" in stack.up().stdout
    assert "nothing to change" in stack.up().stdout
    serials = stack.machine_ids()
    assert set(serials) == {"controller", "work-1", "work-2"}
    status = json.loads(stack.muster("status", "--json").stdout)
    assert {node["name"]: node["state"] for node in status["nodes"]} == {
        "controller": "up",
        "work-1": "idle",
        "work-2": "idle",
    }
    assert status["usd_per_hour"] == {"min": 1.5, "max": 1.5, "now": 1.5}
    stack.spec = {**SPEC, "groups": {"work": {"count": 3}}}
    stack.up()
    grown = stack.machine_ids()
    assert {name: grown[name] for name in serials} == serials
    receipt = stack.muster("teardown", "--yes").stdout
    assert "4 removed" in receipt
    assert "nothing of cluster plain is left" in receipt
    assert not list((stack.home / "shelf").rglob("*.json"))


def test_no_file_outside_the_folder_names_the_target() -> None:
    # Only the guide for authors of targets may name it.
    line = ["git", "grep", "-l", "-i", "shelf_target\\|ShelfTarget", "--", ".", ":!docs"]
    done = subprocess.run(line, cwd=FOLDER.parents[3], text=True, capture_output=True, check=False)
    others = [name for name in done.stdout.splitlines() if not name.startswith("tests/infra/targets/shelf/")]
    assert others == [], "a target is one folder"
