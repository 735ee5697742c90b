"""A state in S3 with the real engine and a program of one resource: moves, keys of KMS, damage and lost locks."""

from __future__ import annotations

import json
import os
import subprocess
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from infra.engine import access_restore, environment, events, lock, pulumi, remote_lock, remote_state
from infra.engine.stop import Stop
from infra.home import Home, StackHome
from infra.targets.aws.rehearse import moto_gaps
from infra.targets.aws.state_store import S3StateStore
from muster.commands import state, state_move
from muster.commands.stacks import resolve_stack
from tests.moto_server import Moto

REPO = Path(__file__).parents[5]
URL = "s3://team-state/clusters?region=us-east-1"
OTHER = "s3://team-state/elsewhere?region=us-east-1"
PROGRAM = """
    import pulumi
    from pulumi.dynamic import CreateResult, Resource, ResourceProvider

    class Provider(ResourceProvider):
        serialize_as_secret_always = False

        def create(self, props):
            return CreateResult("thing", props)

    class Thing(Resource):
        def __init__(self, name, props):
            super().__init__(Provider(), name, props)

    key = pulumi.Output.secret("very secret")
    Thing("thing", {"size": pulumi.Config("muster").require_object("cluster")["size"], "key": key})
    pulumi.export("key", key)
"""
CREDENTIALS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
MakeStack = Callable[..., StackHome]


@pytest.fixture
def make(aws: Moto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MakeStack:
    """Return a function that returns the stack in another operator's home, and makes it that of this process."""
    moto_gaps.apply()
    assert aws.url
    S3StateStore(URL).create_bucket()
    repo = tmp_path / "repo"
    (repo / "infra").mkdir(parents=True)
    (repo / "stacks").mkdir()
    (repo / ".venv").symlink_to(REPO / ".venv")
    (repo / "infra" / "__main__.py").write_text(textwrap.dedent(PROGRAM))
    (repo / "stacks" / "Pulumi.s.yaml").write_text("config:\n  muster:cluster: {size: 1, target: aws}\n")
    monkeypatch.setenv("MUSTER_STACKS", str(repo / "stacks"))

    def stack(operator: str, url: str = "") -> StackHome:
        monkeypatch.setenv("MUSTER_HOME", str(tmp_path / operator))
        monkeypatch.setenv("MUSTER_STATE", url)
        return Home.of(os.environ, repo=repo).stack("s")

    return stack


def up(stack: StackHome, say: Callable[[str], None] = print) -> tuple[int, events.Result]:
    with lock.held(stack, "up", wait=False, say=say) as held:
        return pulumi.up(stack, pulumi.Caller(held, lambda: None, say), environment.RunOptions())


def give_passphrase(giver: StackHome, taker: StackHome) -> None:
    taker.home.root.mkdir(exist_ok=True)
    taker.home.passphrase.write_bytes(giver.home.passphrase.read_bytes())


@pytest.mark.parametrize(
    "name", ["KeyId", *(pytest.param(name, marks=pytest.mark.nightly) for name in ("alias/team", "Arn"))]
)
def test_key_of_kms_replaces_the_passphrase(
    make: MakeStack, aws: Moto, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The credentials are in a profile only."""
    kms = aws.client("kms")
    key = kms.create_key()["KeyMetadata"]
    kms.create_alias(AliasName="alias/team", TargetKeyId=key["KeyId"])
    lines = [f"{variable.lower()} = {os.environ[variable]}" for variable in CREDENTIALS]
    (tmp_path / "credentials").write_text("\n".join(["[team]", *lines, ""]))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    for variable in CREDENTIALS:
        monkeypatch.delenv(variable)
    url = f"{URL}&kms={key.get(name, name)}&profile=team"
    ada = make("ada", url)
    assert up(ada)[0] == 0
    assert not ada.home.passphrase.exists()
    assert b"very secret" not in (S3StateStore(url).read(remote_state.state_key(ada)) or b"very secret")
    bob = make("bob", url)
    code, result = up(bob)
    assert (code, result.changed) == (0, False)
    assert "very secret" in json.dumps(pulumi.resources(bob))
    assert not bob.home.passphrase.exists()


@pytest.mark.nightly
def test_wrong_passphrase_is_named_by_every_command(make: MakeStack) -> None:
    assert up(make("ada", URL))[0] == 0
    bob = make("bob", URL)
    bob.home.root.mkdir()
    bob.home.passphrase.write_text("a guess")
    code, result = up(bob)
    assert code != 0
    (failure,) = result.failures
    assert failure.message == (
        f"the passphrase in {bob.home.passphrase} does not match the state of stack s in {URL}. "
        "Fix: get the passphrase from an operator who has it"
    )
    with pytest.raises(Stop, match=r"the state of stack s cannot be read: .*incorrect passphrase"):
        resolve_stack("s")


@pytest.mark.nightly
def test_move_leaves_the_source_until_the_destination_is_verified(
    make: MakeStack, aws: Moto, capsys: pytest.CaptureFixture[str]
) -> None:
    ada = make("ada")
    assert up(ada)[0] == 0
    before = ada.state.read_bytes()
    (ada.home.receipts).mkdir()
    (ada.home.receipts / "s-20260101T000000Z.json").write_text("{}")
    # The third object that is written; the first one marks the destination.
    aws.interfere = lambda service, action, _: (
        "AccessDenied" if service == "s3" and action.startswith("PUT") and ".json.bak" in action else ""
    )
    with pytest.raises(Stop, match="these credentials may not write"):
        state_move.move(URL)
    assert ada.state.read_bytes() == before
    assert up(ada)[1].changed is False
    bob = make("bob", URL)
    with pytest.raises(Stop, match=r"to move a state here from .*, and has not finished"):
        up(bob)
    aws.interfere = None
    make("ada")
    state_move.move(URL)
    assert "moved s from " in capsys.readouterr().out
    assert not ada.state.exists()
    moved = make("ada")
    assert moved.home.remote == URL
    assert up(moved)[1].changed is False
    bob = make("bob", URL)
    give_passphrase(ada, bob)
    assert up(bob)[1].changed is False
    assert (bob.home.receipts / "s-20260101T000000Z.json").read_text() == "{}"


def test_moved_state_refuses_operators_of_the_old_place_and_comes_back(
    make: MakeStack, capsys: pytest.CaptureFixture[str]
) -> None:
    ada = make("ada", URL)
    assert up(ada)[0] == 0
    state_move.move(OTHER)
    assert f"set MUSTER_STATE to {OTHER}" in capsys.readouterr().out
    bob = make("bob", URL)
    with pytest.raises(Stop) as stop:
        up(bob)
    assert f"this state was moved to {OTHER} by " in stop.value.what
    assert f"muster state use '{OTHER}'" in stop.value.fix
    ada = make("ada", OTHER)
    assert up(ada)[1].changed is False
    state_move.move(URL)
    bob = make("bob", URL)
    give_passphrase(ada, bob)
    assert up(bob)[1].changed is False
    state_move.move("file")
    back = make("bob", "file")
    assert back.state.exists()
    assert up(back)[1].changed is False


@pytest.mark.nightly
def test_move_that_is_interrupted_after_its_verification_is_complete(make: MakeStack, aws: Moto) -> None:
    ada = make("ada", URL)
    assert up(ada)[0] == 0
    aws.interfere = lambda service, action, _: (
        "AccessDenied" if service == "s3" and action.startswith("DELETE") and "moving" in action else ""
    )
    with pytest.raises(Stop, match="these credentials may not delete"):
        state_move.move(OTHER)
    aws.interfere = None
    bob = make("bob")
    give_passphrase(ada, bob)
    state.use(OTHER)
    bob = make("bob")
    assert bob.home.remote == OTHER
    assert up(bob)[1].changed is False
    assert S3StateStore(OTHER).read(remote_state.MOVING) is None


@pytest.mark.nightly
def test_move_does_not_overwrite_another_state(make: MakeStack) -> None:
    assert up(make("bob", URL))[0] == 0
    ada = make("ada")
    assert up(ada)[0] == 0
    with pytest.raises(Stop) as stop:
        state_move.move(URL)
    assert f"{URL} has other states of s; nothing was changed" in stop.value.what
    with pytest.raises(Stop, match="s exists both in"):
        state.use(URL)
    assert up(make("ada"))[1].changed is False


def test_damaged_state_is_reported_and_an_earlier_version_restored(
    make: MakeStack, capsys: pytest.CaptureFixture[str]
) -> None:
    ada = make("ada", URL)
    assert up(ada)[0] == 0
    store, key = S3StateStore(URL), remote_state.state_key(ada)
    store.write(key, (store.read(key) or b"")[:100])
    with pytest.raises(Stop) as stop:
        resolve_stack("s")
    assert f"the state of stack s ({key} in {URL}) is damaged: " in stop.value.what
    assert "`.venv/bin/muster state restore --stack s VERSION` restores one" in stop.value.fix
    with pytest.raises(Stop, match="is damaged"):
        up(ada)
    state.show("s", as_json=True)
    versions = json.loads(capsys.readouterr().out)["versions"]
    with pytest.raises(Stop, match=f"version: '{versions[0]['id']}' is damaged, too"):
        state.restore("s", versions[0]["id"])
    with pytest.raises(Stop, match="version: stack s has no 'nope'"):
        state.restore("s", "nope")
    state.restore("s", versions[1]["id"])
    assert up(ada)[1].changed is False


def test_lock_of_a_dead_run_is_taken_over_in_its_own_home_only(make: MakeStack) -> None:
    ada = make("ada", URL)
    assert up(ada)[0] == 0
    with subprocess.Popen(["true"]) as ended:
        ended.wait()
    note = remote_lock.acquire(ada, "up", wait=False, say=print)
    store = S3StateStore(URL)
    pulumi_lock = {
        "pid": ended.pid,
        "username": "ada",
        "hostname": note.hostname,
        "timestamp": f"{note.since[:19]}.999999999Z",
    }
    store.write(".pulumi/locks/organization/muster/s/1.json", json.dumps(pulumi_lock).encode())
    bob = make("bob", URL)
    give_passphrase(ada, bob)
    with pytest.raises(Stop) as stop:
        up(bob)
    assert f"another command is using stack s: {note}" in stop.value.what
    assert "`.venv/bin/muster state unlock --stack s`" in stop.value.fix
    messages: list[str] = []
    ada = make("ada", URL)
    assert up(ada, messages.append)[0] == 0
    assert any("the last run was killed (`muster up` by " in message for message in messages)
    assert store.list_tags(".pulumi/locks/") == {}
    assert store.read(remote_lock.key(ada)) is None


@pytest.mark.nightly
def test_lock_of_plain_pulumi_is_never_taken_over(make: MakeStack) -> None:
    """Another machine may have the same host name, so that a process of another machine would seem dead."""
    ada = make("ada", URL)
    assert up(ada)[0] == 0
    store = S3StateStore(URL)
    with subprocess.Popen(["true"]) as ended:
        ended.wait()
    body = {"pid": ended.pid, "username": "x", "hostname": os.uname().nodename, "timestamp": "2026-01-01T00:00:00.0Z"}
    store.write(".pulumi/locks/organization/muster/s/1.json", json.dumps(body).encode())
    with pytest.raises(Stop) as stop, lock.held(ada, "up", wait=False, say=print):
        pulumi.wait_for_others(ada, wait=False, say=print)
    assert f"`pulumi` (process {ended.pid}" in stop.value.what
    assert "state unlock --stack s" in stop.value.fix
    state.unlock("s", yes=True)
    assert up(ada)[0] == 0


def test_access_files_follow_the_state(make: MakeStack, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of a cluster that someone else removed are removed, and an unchanged state is not read again."""
    ada = make("ada", URL)
    assert up(ada)[0] == 0
    ada.folder.mkdir(exist_ok=True)
    ada.inventory.write_text("{}")
    access_restore.restore_access(ada, remote_state.pull(ada))
    assert not ada.inventory.exists()
    ada.inventory.write_text("{}")
    monkeypatch.setattr(pulumi, "resources", None)
    access_restore.restore_access(ada, remote_state.pull(ada))
    assert ada.inventory.exists()
    access_restore.restore_access(ada, "")
    assert not ada.inventory.exists()


def test_url_of_an_unknown_scheme_is_refused_with_the_allowed_ones(make: MakeStack) -> None:
    make("ada", "gs://bucket/prefix")
    with pytest.raises(Stop) as stop:
        resolve_stack("s")
    assert stop.value.what == (
        "state: 'gs://bucket/prefix' is not the URL of a state; allowed: s3://BUCKET/PREFIX?region=REGION, file"
    )
