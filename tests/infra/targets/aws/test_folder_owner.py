"""Stacks of the same name in several states do not use or overwrite each other's access files in a MUSTER_HOME."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from infra.engine import access_restore, remote_state
from infra.engine.folder_owner import claim_folder, record_owner
from infra.engine.stop import Stop
from infra.home import FILE_STATE, Home, StackHome
from infra.targets.aws.rehearse import moto_gaps
from infra.targets.aws.state_store import S3StateStore
from infra.targets.aws.target import AwsTarget
from muster.commands.stacks import resolve_stack
from tests.infra.targets.aws.specs import good
from tests.moto_server import Moto

FIRST, SECOND, THIRD, FOURTH = (
    f"s3://team-state/{prefix}?region=us-east-1" for prefix in ("first", "second", "third", "fourth")
)


class Machine:
    """A MUSTER_HOME that is used with several states."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root, self._monkeypatch = root, monkeypatch
        monkeypatch.setenv("MUSTER_HOME", str(root))
        monkeypatch.setenv("MUSTER_STACKS", str(root / "stacks"))
        (root / "stacks").mkdir()
        (root / "stacks" / "Pulumi.train.yaml").write_text(yaml.safe_dump({"config": {"muster:cluster": good()}}))

    def resolve(self, state: str) -> StackHome:
        """Resolve the stack `train`, as every command does."""
        self._monkeypatch.setenv("MUSTER_STATE", state)
        return resolve_stack("train")

    def stack(self, state: str) -> StackHome:
        return Home.of({"MUSTER_HOME": str(self.root), "MUSTER_STATE": state}).stack("train")

    def create_cluster(self, state: str, cluster: str) -> None:
        """Write the state of a cluster, as Pulumi does."""
        stack = self.stack(state)
        content = json.dumps({"cluster": cluster}).encode()
        remote_state.open_store(stack.home).write(remote_state.state_key(stack), content)

    @property
    def cluster(self) -> str:
        """The cluster whose access files the home has."""
        inventory = self.root / "train" / "inventory.json"
        return str(json.loads(inventory.read_text())["cluster"]) if inventory.exists() else ""


def write_moved(stack: StackHome, to: str) -> None:
    """Write the note that a move leaves where the state was."""
    note = {"to": to, "by": "ada", "at": "2026-11-17T18:00:00+00:00"}
    remote_state.open_store(stack.home).write(remote_state.MOVED, json.dumps(note).encode())


def read_resources(stack: StackHome) -> list[dict[str, Any]]:
    """Return the resource that writes the access files; instead of Pulumi, read the state itself."""
    inventory = json.dumps({"cluster": json.loads(stack.state.read_text())["cluster"], "target": "aws"})
    return [{"inputs": {"inventory": inventory, "spec": "", "stack": stack.name, "ssh_private_key": ""}}]


@pytest.fixture
def machine(aws: Moto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    assert aws
    # moto itself takes the policy's condition for fulfilled, and refuses every request.
    moto_gaps.apply()
    S3StateStore(FIRST).create_bucket()
    monkeypatch.setattr(access_restore, "_read_resources", read_resources)
    render = lambda _self, _folder, properties: {"inventory.json": (properties["inventory"], 0o644)}  # noqa: E731  # short
    monkeypatch.setattr(AwsTarget, "access_files", render)
    return Machine(tmp_path, monkeypatch)


def check_refused(machine: Machine, state: str, owner: str) -> None:
    before = machine.cluster
    with pytest.raises(Stop) as stop:
        machine.resolve(state)
    assert f"belongs to the cluster of the stack of this name in state {owner}, but" in stop.value.what
    assert stop.value.what.endswith(f"but this command is for state {state}; nothing was changed")
    assert stop.value.fix.startswith(f"set MUSTER_STATE='{owner}' to use that one")
    assert machine.cluster == before


def test_second_bucket_does_not_overwrite_the_access_files_of_the_first(machine: Machine) -> None:
    machine.create_cluster(FIRST, "alpha")
    machine.create_cluster(SECOND, "beta")
    machine.resolve(FIRST)
    assert machine.cluster == "alpha"
    check_refused(machine, SECOND, FIRST)
    check_refused(machine, FILE_STATE, FIRST)
    machine.resolve(FIRST)
    assert machine.cluster == "alpha"


def test_bucket_without_a_cluster_does_not_use_the_access_files_of_another(machine: Machine) -> None:
    machine.create_cluster(FIRST, "alpha")
    machine.resolve(FIRST)
    check_refused(machine, SECOND, FIRST)


@pytest.mark.parametrize("is_recorded", [True, False])
def test_bucket_does_not_overwrite_the_access_files_of_the_file_state(machine: Machine, is_recorded: bool) -> None:
    """Versions before this one did not record to which state a folder belongs."""
    machine.create_cluster(FILE_STATE, "alpha")
    stack = machine.stack(FILE_STATE)
    stack.folder.mkdir()
    stack.inventory.write_text(json.dumps({"cluster": "alpha"}))
    if is_recorded:
        record_owner(stack)
    machine.create_cluster(SECOND, "beta")
    check_refused(machine, SECOND, FILE_STATE)
    machine.resolve(FILE_STATE)
    assert machine.cluster == "alpha"


def test_first_up_claims_the_folder_before_the_access_files_exist(machine: Machine) -> None:
    stack = machine.resolve(FIRST)
    assert not stack.folder.exists(), "a command that only looks leaves no folder"
    record_owner(stack)
    machine.create_cluster(FIRST, "alpha")
    check_refused(machine, SECOND, FIRST)


def test_folder_is_free_once_the_other_state_has_no_such_stack(machine: Machine) -> None:
    machine.create_cluster(FIRST, "alpha")
    machine.create_cluster(SECOND, "beta")
    stack = machine.resolve(FIRST)
    # Another operator removes the first cluster.
    remote_state.open_store(stack.home).remove(remote_state.state_key(stack))
    machine.resolve(SECOND)
    assert machine.cluster == "beta"
    check_refused(machine, FIRST, SECOND)


def test_cluster_of_the_same_state_may_be_replaced(machine: Machine) -> None:
    machine.create_cluster(FIRST, "alpha")
    machine.resolve(FIRST)
    machine.create_cluster(FIRST, "beta")
    machine.resolve(FIRST)
    assert machine.cluster == "beta"


@pytest.mark.parametrize("destination", [SECOND, FILE_STATE])
def test_folder_moves_with_its_state(machine: Machine, destination: str) -> None:
    machine.create_cluster(FIRST, "alpha")
    first = machine.resolve(FIRST)
    machine.create_cluster(destination, "alpha")
    to = remote_state.open_store(machine.stack(destination).home).url
    write_moved(first, to)
    machine.resolve(destination)
    assert machine.cluster == "alpha"
    owner = destination if destination == FILE_STATE else to
    check_refused(machine, THIRD, owner)


@pytest.mark.parametrize("destination", [THIRD, FILE_STATE])
def test_folder_moves_with_a_state_that_other_homes_moved_twice(machine: Machine, destination: str) -> None:
    machine.create_cluster(FIRST, "alpha")
    first = machine.resolve(FIRST)
    machine.create_cluster(destination, "alpha")
    machine.create_cluster(FOURTH, "beta")
    to = remote_state.open_store(machine.stack(destination).home).url
    write_moved(first, SECOND)
    write_moved(machine.stack(SECOND), to)
    check_refused(machine, FOURTH, destination)
    machine.resolve(destination)
    assert machine.cluster == "alpha"


def test_notes_that_form_a_circle_are_followed_once(machine: Machine) -> None:
    """A move that is interrupted may leave the old note at its destination."""
    machine.create_cluster(FIRST, "alpha")
    first = machine.resolve(FIRST)
    write_moved(first, SECOND)
    write_moved(machine.stack(SECOND), FIRST)
    check_refused(machine, THIRD, FIRST)


def test_moved_state_whose_new_place_cannot_be_read_keeps_its_folder(machine: Machine, aws: Moto) -> None:
    machine.create_cluster(FIRST, "alpha")
    write_moved(machine.resolve(FIRST), SECOND)
    stack = machine.stack(THIRD)
    aws.fail("GET /team-state/second/.muster/moved.json", "AccessDenied", times=5)
    with pytest.raises(Stop) as stop:
        claim_folder(stack)
    assert stop.value.fix.startswith(f"set MUSTER_STATE='{SECOND}' to use that one")
    assert machine.cluster == "alpha"


def test_state_that_cannot_be_read_keeps_its_folder(machine: Machine, aws: Moto) -> None:
    machine.create_cluster(FIRST, "alpha")
    machine.resolve(FIRST)
    stack = machine.stack(SECOND)
    aws.fail("GET /team-state/first/.muster/moved.json", "AccessDenied", times=5)
    aws.fail("GET /team-state", "AccessDenied", times=5)
    with pytest.raises(Stop, match="belongs to the cluster of the stack of this name in state"):
        claim_folder(stack)
    assert machine.cluster == "alpha"
