"""The environment of `pulumi`, the working copy of a stack file, and Pulumi's messages without their noise."""

from __future__ import annotations

import json
import subprocess
import threading
from pathlib import Path

import pytest

from infra import receipt
from infra.engine import environment, events, lock, project
from infra.home import RESERVED, Home
from muster.commands import last_up

HOME = Home.of({"MUSTER_HOME": "/h", "MUSTER_CACHE": "/c", "MUSTER_STACKS": "/s"}, repo=Path("/r"))
SALT = "encryptionsalt: v1:abc=:v1:def:ghi=="


def test_defaults_are_in_the_repository_and_in_the_users_cache() -> None:
    home = Home.of({"HOME": "/me"}, repo=Path("/r"))
    assert (home.root, home.cache, home.stacks) == (Path("/r/.muster"), Path("/me/.cache/muster"), Path("/r/stacks"))


def test_tools_and_virtualenv_come_first_and_only_once() -> None:
    path = environment.environment({"PATH": "/bin:/r/.venv/bin:/usr/bin"}, HOME)["PATH"]
    assert path == "/c/pulumi/3.259.0/bin:/r/.venv/bin:/bin:/usr/bin"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PULUMI_BACKEND_URL", "file:///h/state?metadata=skip"),
        ("PULUMI_CONFIG_PASSPHRASE_FILE", "/h/passphrase"),
        ("PULUMI_SKIP_UPDATE_CHECK", "true"),
        ("PIP_DISABLE_PIP_VERSION_CHECK", "1"),
        ("PULUMI_DISABLE_AUTOMATIC_PLUGIN_ACQUISITION", "true"),
        ("VIRTUAL_ENV", "/r/.venv"),
        ("MUSTER_HOME", "/h"),
        ("OTHER", "unchanged"),
    ],
)
def test_environment_variables_of_pulumi(name: str, value: str) -> None:
    assert environment.environment({"OTHER": "unchanged"}, HOME)[name] == value


@pytest.mark.parametrize("name", ["PULUMI_CONFIG_PASSPHRASE", "PULUMI_ACCESS_TOKEN", "PYTHONHOME"])
def test_variables_that_would_redirect_pulumi_are_removed(name: str) -> None:
    assert name not in environment.environment({name: "x"}, HOME)


def test_force_and_judged_budget_come_from_the_command_only() -> None:
    stack = HOME.stack("local")
    assert "MUSTER_FORCE" not in environment.stack_environment({"MUSTER_FORCE": "1"}, stack)
    assert environment.stack_environment({}, stack, environment.RunOptions(force=True))["MUSTER_FORCE"] == "1"
    budget_checked = environment.BUDGET_CHECKED
    assert budget_checked not in environment.stack_environment({budget_checked: "1"}, stack)
    assert environment.stack_environment({}, stack, environment.RunOptions(budget_checked=True))[budget_checked] == "1"


def test_exports_are_quoted_for_a_shell() -> None:
    home = Home.of({"MUSTER_HOME": "/with space/and'quote"}, repo=Path("/r"))
    script = environment.exports({"PATH": "/usr/bin:/bin"}, home) + '\nprintf %s "$MUSTER_HOME"'
    assert subprocess.run(["bash", "-c", script], text=True, capture_output=True).stdout == "/with space/and'quote"


def test_passphrase_is_created_once_and_readable_by_its_owner_only(tmp_path: Path) -> None:
    home = Home.of({"MUSTER_HOME": str(tmp_path / "home")})
    environment.prepare(home)
    first = home.passphrase.read_text()
    environment.prepare(home)
    assert home.passphrase.read_text() == first
    assert len(first) > 30
    assert home.passphrase.stat().st_mode & 0o777 == 0o600


def test_concurrent_first_commands_agree_on_one_passphrase(tmp_path: Path) -> None:
    home = Home.of({"MUSTER_HOME": str(tmp_path)})
    home.passphrase.touch()
    passphrases = []

    def first_command() -> None:
        environment.prepare(home)
        passphrases.append(home.passphrase.read_text())

    threads = [threading.Thread(target=first_command) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(passphrases) == len(threads)
    assert set(passphrases) == {home.passphrase.read_text()}
    assert len(passphrases[0]) > 30
    assert sorted(path.name for path in tmp_path.iterdir()) == ["passphrase", "state"]


def test_empty_passphrase_of_an_existing_state_is_not_replaced(tmp_path: Path) -> None:
    home = Home.of({"MUSTER_HOME": str(tmp_path)})
    home.passphrase.touch()
    state = home.stack("s").state
    state.parent.mkdir(parents=True)
    state.write_text("{}")
    environment.prepare(home)
    assert home.passphrase.read_text() == ""


def test_folders_of_the_home_are_for_its_owner_only(tmp_path: Path) -> None:
    stack = Home.of({"MUSTER_HOME": str(tmp_path / "home")}).stack("s")
    stack.home.receipts.mkdir(parents=True, mode=0o755)
    environment.prepare(stack.home)
    project.write(stack)
    last_up.write_last_up(stack, last_up.LastUp("ready", "2026-01-01T00:00:00+00:00"))
    receipt.save(receipt.Receipt("s", "c", "2026-01-01T00:00:00+00:00", 1.0), stack.home.receipts)
    with lock.held(stack, "up", wait=False, say=print):
        folders = [path for path in stack.home.root.iterdir() if path.is_dir()]
    assert sorted(path.name for path in folders) == ["locks", "receipts", "s", "state"]
    assert {path.stat().st_mode & 0o777 for path in folders} == {0o700}


@pytest.mark.parametrize("name", ["local", "a", "0-1", "a" * 39])
def test_valid_stack_names(name: str) -> None:
    assert HOME.stack(name).folder == Path("/h") / name


@pytest.mark.parametrize("name", ["", "-a", "A", "a/b", "..", "a.b", "a\n", "a b", "a" * 40, *RESERVED])
def test_invalid_stack_names(name: str) -> None:
    with pytest.raises(ValueError, match="allowed: "):
        HOME.stack(name)


def test_shared_folders_of_the_home_are_reserved_names() -> None:
    shared = (HOME.state, HOME.receipts, HOME.images, HOME.passphrase, HOME.stack("s").lock.parent)
    assert {path.name for path in shared} <= set(RESERVED)


@pytest.mark.parametrize(
    ("tracked", "before", "expected"),
    [
        ("config: {}\n", "", "config: {}\n"),
        ("config: {a: 2}\n", f"config: {{a: 1}}\n{SALT}\n", f"config: {{a: 2}}\n{SALT}\n"),
        ("config: {}", f"{SALT}\n", f"config: {{}}\n{SALT}\n"),
        (f"config: {{}}\n{SALT}\n", "encryptionsalt: v1:other\n", f"config: {{}}\n{SALT}\n"),
    ],
)
def test_working_copy_follows_the_tracked_file_and_keeps_its_salt(tracked: str, before: str, expected: str) -> None:
    assert project.working_copy(tracked, before) == expected


@pytest.mark.parametrize(
    ("message", "cleaned"),
    [
        ("Exception calling application: node gpu-1, step slurmd: no key.", "node gpu-1, step slurmd: no key."),
        ("error: update failed", ""),
        ("update failed\n", ""),
        ("resource registration failed", ""),
        (
            "pulumi-python:muster:ChangeGuard resource 'guard' has a problem: users.muster.uid: may not change",
            "users.muster.uid: may not change",
        ),
        (
            "Program failed with an unhandled exception:\nTraceback (most recent call last):\n  x\nKeyError: 'a'\n",
            "KeyError: 'a'",
        ),
        ("plain text", "plain text"),
    ],
)
def test_noise_is_removed_from_messages(message: str, cleaned: str) -> None:
    assert events.clean(message) == cleaned


def diagnostic(message: str, urn: str = "", severity: str = "error") -> str:
    return json.dumps({"diagnosticEvent": {"message": message, "urn": urn, "severity": severity}})


def test_failed_run_lists_each_failure_once() -> None:
    urn = "urn:pulumi:s::muster::pulumi-python:muster:Node::gpu-1"
    lines = [
        diagnostic("beginning rpc", severity="debug"),
        diagnostic("Exception calling application: no disk", urn),
        diagnostic("Exception calling application: no disk", urn),
        diagnostic("update failed"),
        json.dumps({"summaryEvent": {"resourceChanges": {"create": 1}}}),
        '{"cut off',
    ]
    result = events.parse(lines)
    assert result.failures == (events.Failure("gpu-1", "no disk"),)
    assert result.changed


@pytest.mark.parametrize(
    ("changes", "changed"),
    [({"same": 9}, False), ({"same": 9, "refresh": 3}, False), ({"same": 8, "update": 1}, True), ({}, False)],
)
def test_changed_only_if_a_resource_changed(changes: dict[str, int], changed: bool) -> None:
    assert events.parse([json.dumps({"summaryEvent": {"resourceChanges": changes}})]).changed is changed
