"""The state in S3: its URL, its objects, its lock, and every way in which it cannot be used."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from infra.engine import lock, pulumi, remote_lock, remote_state
from infra.engine.access_restore import restore_access
from infra.engine.state_store import FolderStore, StateStore
from infra.engine.stop import BAD_INPUT, Stop
from infra.home import Home, StackHome
from infra.targets.aws.rehearse import moto_gaps
from infra.targets.aws.state_store import S3StateStore, parse_url
from muster.commands import state_move
from tests.moto_server import Moto

URL = "s3://team-state/clusters?region=us-east-1"
KEY_ID = "1234abcd-12ab-34cd-56ef-1234567890ab"
KEY_ARN = f"arn:aws:kms:us-east-1:123456789012:key/{KEY_ID}"


@pytest.fixture
def bucket(aws: Moto) -> Moto:
    """Return an account with the bucket of URL."""
    # moto itself takes the policy's condition for fulfilled, and refuses every request.
    moto_gaps.apply()
    S3StateStore(URL).create_bucket()
    return aws


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("s3://team-state", "the option region is missing; allowed: names such as eu-central-1"),
        ("s3://team-state?region=europe", "region 'europe' is not a region; allowed: names such as eu-central-1"),
        ("s3://A_b/x?region=us-east-1", "'A_b' is not a bucket name; allowed: 3 to 63 lower-case letters"),
        ("s3://team-state/x?region=us-east-1&colour=red", "option 'colour' is unknown; allowed: region ("),
        ("s3://team-state/x?region=us-east-1&region=us-east-1", "an option is given twice; allowed: each once"),
        ("s3://team-state/x?region=us-east-1&kms=", "kms '' is not a key; allowed: alias/NAME, the id of a key, or "),
        ("s3://team-state/x?region=us-east-1&kms=muster", "kms 'muster' is not a key; allowed: alias/NAME, "),
        ("s3://team-state/x?region=us-east-1&kms=alias/a?b", "kms 'alias/a?b' is not a key"),
        (f"s3://team-state/x?region=eu-west-1&kms={KEY_ARN}", f"kms '{KEY_ARN}' is not a key; allowed: alias/NAME"),
        ("s3://team-state/.pulumi?region=us-east-1", "prefix '.pulumi' is invalid; allowed: names that do not start"),
        ("s3://team-state/a/../b?region=us-east-1", "prefix 'a/../b' is invalid"),
    ],
)
def test_invalid_url_is_refused_with_what_is_allowed(url: str, problem: str) -> None:
    with pytest.raises(Stop) as stop:
        parse_url(url)
    assert stop.value.what.startswith(f"state: {url}: {problem}")
    assert (stop.value.fix, stop.value.code) == ("write s3://BUCKET/PREFIX?region=REGION", BAD_INPUT)


@pytest.mark.parametrize(
    ("url", "environment", "backend", "secrets"),
    [
        ("s3://team-state?region=us-east-1", {}, "s3://team-state/?region=us-east-1", ""),
        (
            "s3://team-state/a/b?region=eu-central-1&kms=alias/muster&profile=team",
            {},
            "s3://team-state/a/b?region=eu-central-1&profile=team",
            "awskms://alias/muster?region=eu-central-1&profile=team",
        ),
        (
            f"s3://team-state?region=us-east-1&kms={KEY_ID}",
            {},
            "s3://team-state/?region=us-east-1",
            f"awskms://{KEY_ID}?region=us-east-1",
        ),
        (
            f"s3://team-state?region=us-east-1&kms={KEY_ARN}",
            {},
            "s3://team-state/?region=us-east-1",
            f"awskms:///{KEY_ARN}?region=us-east-1",
        ),
        (
            "s3://team-state/a?region=us-east-1&endpoint=http://127.0.0.1:9",
            {},
            "s3://team-state/a?region=us-east-1&endpoint=http%3A%2F%2F127.0.0.1%3A9&use_path_style=true",
            "",
        ),
        (
            "s3://team-state/a?region=us-east-1",
            {"AWS_ENDPOINT_URL": "http://127.0.0.1:9"},
            "s3://team-state/a?region=us-east-1&use_path_style=true",
            "",
        ),
    ],
)
def test_url_for_pulumi(url: str, environment: dict[str, str], backend: str, secrets: str) -> None:
    store = S3StateStore(url, environment)
    assert (store.backend_url, store.secrets_provider) == (backend, secrets)


@pytest.mark.parametrize("kind", ["folder", "s3"])
def test_stores_behave_alike(kind: str, bucket: Moto, tmp_path: Path) -> None:
    store: StateStore = FolderStore(tmp_path / "state") if kind == "folder" else S3StateStore(URL)
    assert bucket.url
    store.check()
    assert (store.read("a/b.json"), store.list_tags("")) == (None, {})
    assert store.create("a/b.json", b"1")
    assert not store.create("a/b.json", b"2")
    first = store.list_tags("a/")
    store.write("a/b.json", b"3")
    assert store.list_tags("a/").keys() == first.keys() == {"a/b.json"}
    assert store.list_tags("a/") != first
    assert store.list_tags("x") == {}
    assert store.read("a/b.json") == b"3"
    store.remove("a/b.json")
    assert store.read("a/b.json") is None
    store.remove("a/b.json")


def test_removed_and_replaced_objects_stay_as_versions(bucket: Moto) -> None:
    store = S3StateStore(URL)
    for content in (b"1", b"22"):
        store.write("x.json", content)
    store.write("x.json.bak", b"other")
    newest, oldest = store.versions("x.json")
    assert (newest.size, newest.is_latest, oldest.size) == (2, True, 1)
    assert store.read("x.json", oldest.id) == b"1"
    assert store.read("x.json", "nope") is None
    store.remove("x.json")
    assert len(store.versions("x.json")) == 2


def test_prefixes_of_a_bucket_are_apart(bucket: Moto) -> None:
    other = S3StateStore("s3://team-state/other?region=us-east-1")
    other.write("x", b"theirs")
    assert S3StateStore(URL).list_tags("") == {}
    assert bucket.client("s3").list_objects_v2(Bucket="team-state")["Contents"][0]["Key"] == "other/x"


@pytest.fixture
def stack(bucket: Moto, tmp_path: Path) -> StackHome:
    """Return a stack whose state is in the bucket."""
    assert bucket.url
    return make_home(tmp_path / "home").stack("s")


def make_home(root: Path) -> Home:
    return Home.of({"MUSTER_HOME": str(root), "MUSTER_STATE": URL})


def test_lock_of_a_copied_home_is_not_taken_over(stack: StackHome, tmp_path: Path) -> None:
    note = remote_lock.acquire(stack, "up", wait=False, say=print)
    shutil.copytree(stack.home.root, tmp_path / "copy")
    copy = make_home(tmp_path / "copy").stack("s")
    stop = explain(lambda: remote_lock.acquire(copy, "up", wait=False, say=print))
    assert f"another command is using stack s: {note}" in stop.what
    assert "`.venv/bin/muster state unlock --stack s`" in stop.fix


@pytest.mark.parametrize("machine_id", ["another", ""])
def test_lock_is_not_taken_over_on_another_machine(
    stack: StackHome, machine_id: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages: list[str] = []
    note = remote_lock.acquire(stack, "up", wait=False, say=messages.append)
    (tmp_path / "machine-id").write_text(machine_id)
    monkeypatch.setattr(remote_state, "_MACHINE_ID", tmp_path / "machine-id")
    monkeypatch.setattr("socket.gethostname", lambda: "elsewhere")
    stop = explain(lambda: remote_lock.acquire(stack, "up", wait=False, say=messages.append))
    assert f"another command is using stack s: {note}" in stop.what
    monkeypatch.undo()
    assert messages == []


def test_lock_is_taken_over_in_the_same_home(stack: StackHome) -> None:
    messages: list[str] = []
    for _ in range(2):
        remote_lock.acquire(stack, "up", wait=False, say=messages.append)
    (message,) = messages
    assert message.startswith("the last run was killed (`muster up` by ")


def test_lock_of_a_dead_pulumi_is_taken_over_in_a_folder_and_never_in_a_shared_state(
    stack: StackHome, tmp_path: Path
) -> None:
    """Another machine may have the same host name, so that a process of another machine would seem dead."""
    with subprocess.Popen(["true"]) as ended:
        ended.wait()
    note = {"pid": ended.pid, "hostname": socket.gethostname(), "timestamp": "2026-01-01T00:00:00.0Z"}
    alone = Home.of({"MUSTER_HOME": str(tmp_path / "alone")}).stack("s")
    alone.pulumi_locks.mkdir(parents=True)
    (alone.pulumi_locks / "1.json").write_text(json.dumps(note))
    assert lock.find_stale(alone) is not None
    S3StateStore(URL).write(".pulumi/locks/organization/muster/s/1.json", json.dumps(note).encode())
    stop = explain(lambda: pulumi.wait_for_others(stack, wait=False, say=print))
    assert f"`pulumi` (process {ended.pid}" in stop.what
    assert "state unlock --stack s" in stop.fix


def test_a_move_does_not_overwrite_the_state_of_others(
    bucket: Moto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert bucket.url
    (tmp_path / "Pulumi.s.yaml").write_text("config:\n  muster:cluster: {name: s, target: aws}\n")
    monkeypatch.setenv("MUSTER_STACKS", str(tmp_path))
    monkeypatch.setenv("MUSTER_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("MUSTER_STATE", raising=False)
    ours = Home.of({"MUSTER_HOME": str(tmp_path / "home"), "MUSTER_STACKS": str(tmp_path)}).stack("s")
    ours.state.parent.mkdir(parents=True)
    ours.state.write_text('{"ours": 1}')
    store, key = S3StateStore(URL), remote_state.state_key(ours)
    store.write(key, b'{"theirs": 1}')
    stop = explain(lambda: state_move.move(URL))
    assert f"{URL} has other states of s; nothing was changed" in stop.what
    assert (ours.state.read_text(), store.read(key)) == ('{"ours": 1}', b'{"theirs": 1}')
    assert store.list_tags("").keys() == {key}
    assert ours.home.remote == ""


@pytest.mark.parametrize("content", [b"", b"\xff{", b"[]", b"{}", b'{"pid": "x"}', b"null"])
def test_unreadable_locks_count_as_held(stack: StackHome, content: bytes) -> None:
    store, pulumi_key = S3StateStore(URL), ".pulumi/locks/organization/muster/s/1.json"
    store.write(pulumi_key, content)
    note = remote_lock.acquire(stack, "up", wait=False, say=print)
    remote_lock.release(stack, note)
    assert store.list_tags("").keys() == {pulumi_key}
    store.write(remote_lock.key(stack), content)
    stop = explain(lambda: remote_lock.acquire(stack, "up", wait=False, say=print))
    assert "another command is using stack s: `an unknown command` by unknown" in stop.what


def test_lock_that_is_gone_is_asked_for_again_after_a_pause(
    stack: StackHome, bucket: Moto, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S3 refuses a write that meets another one of the same object, which need not exist afterwards."""
    pauses: list[float] = []
    monkeypatch.setattr(remote_lock.time, "sleep", pauses.append)
    bucket.fail(f"PUT /team-state/clusters/{remote_lock.key(stack)}", "ConditionalRequestConflict", times=2)
    assert remote_lock.acquire(stack, "up", wait=False, say=print)
    assert len(pauses) == 2
    assert min(pauses) > 0


def test_access_files_stay_while_the_file_state_has_the_stack(stack: StackHome) -> None:
    in_files = stack.home.with_file_state().stack("s")
    for file in (in_files.state, stack.inventory, stack.folder / "id_ed25519"):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("{}")
    restore_access(stack, remote_state.pull(stack))
    assert stack.inventory.exists()
    assert (stack.folder / "id_ed25519").exists()
    in_files.state.unlink()
    restore_access(stack, remote_state.pull(stack))
    assert not stack.inventory.exists()
    assert not (stack.folder / "id_ed25519").exists()


def explain(action: Callable[[], object]) -> Stop:
    with pytest.raises(Stop) as stop:
        action()
    return stop.value


def test_missing_bucket_error_names_the_command_that_creates_it(aws: Moto) -> None:
    store = S3StateStore(URL)
    for action in (store.check, lambda: store.list_tags(""), lambda: store.read("x"), lambda: store.write("x", b"")):
        stop = explain(action)
        assert stop.what == f"state: {URL}: bucket 'team-state' does not exist"
        assert stop.fix == f"check the name, or `.venv/bin/muster state create '{URL}'`"
    assert aws.calls


def test_wrong_region_error_has_the_corrected_url(bucket: Moto) -> None:
    stop = explain(S3StateStore("s3://team-state/clusters?region=eu-central-1&kms=alias/x").check)
    assert stop.what.endswith("bucket 'team-state' is in region us-east-1, not eu-central-1")
    assert stop.fix == "write s3://team-state/clusters?region=us-east-1&kms=alias/x"
    assert bucket.calls


@pytest.mark.parametrize(
    ("action", "use"),
    [
        ("HEAD /team-state", lambda store: store.check()),
        ("GET /team-state", lambda store: store.list_tags("")),
        ("GET /team-state/clusters/x", lambda store: store.read("x")),
        ("PUT /team-state/clusters/x", lambda store: store.create("x", b"")),
        ("DELETE /team-state/clusters/x", lambda store: store.remove("x")),
    ],
)
def test_missing_permission_error_lists_the_needed_ones(
    bucket: Moto, action: str, use: Callable[[StateStore], object]
) -> None:
    bucket.fail(action, "AccessDenied", times=5)
    stop = explain(lambda: use(S3StateStore(URL)))
    assert stop.what.startswith(f"state: {URL}: these credentials may not ")
    assert stop.what.endswith("(403)" if action.startswith("HEAD") else "(AccessDenied)")
    assert "s3:ListBucket" in stop.fix
    assert "s3:PutObject" in stop.fix


def test_missing_credentials_and_profile(aws: Moto, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("HOME", str(tmp_path))
    stop = explain(S3StateStore(URL).check)
    assert stop.what == f"state: {URL}: there are no AWS credentials, or they are incomplete"
    stop = explain(S3StateStore(f"{URL}&profile=nobody").check)
    assert "nobody" in stop.what
    assert "AWS_PROFILE" in stop.fix
    assert aws.calls == []


def test_bucket_with_objects_is_left_as_it_is(bucket: Moto) -> None:
    S3StateStore(URL).write("x", b"1")
    before = bucket.count()
    stop = explain(S3StateStore(URL).create_bucket)
    assert "exists and has objects; its settings were not changed" in stop.what
    assert f"muster state use '{URL}'" in stop.fix
    assert not [call for call in bucket.calls[before.total() :] if call.action.startswith("PUT")]
