"""Programs of the spec: fetched from S3, checked, run once, before the node runs jobs; a failure names its reason."""

from __future__ import annotations

import fcntl
import threading
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bootstrap.errors import BootstrapError
from bootstrap.facts.model import Facts
from bootstrap.steps import registry
from bootstrap.steps.step import Step
from infra.targets.aws.node import set_up
from infra.targets.aws.node.hooks import NodeHook, run_hooks, select_hooks
from infra.targets.aws.node.identity import find_node
from infra.targets.aws.plan.hooks import node_hooks, objects_by_role
from infra.targets.aws.spec import aws_section
from tests.infra.targets.aws.node.clusters import cloud, desired, fixed, inventory
from tests.infra.targets.aws.node.metadata import Machine, metadata
from tests.infra.targets.aws.specs import spec
from tests.moto_server import REGION, Moto

BUCKET = "my-tools"
GPU = find_node(inventory(), "gpu-3", "i-3", "10.0.1.3")
CONTROLLER = fixed("controller", "controller", 10)


@pytest.fixture
def bucket(aws: Moto, monkeypatch: pytest.MonkeyPatch) -> Iterator[Moto]:
    aws.client("s3").create_bucket(Bucket=BUCKET)
    with metadata("127.0.0.1", {"127.0.0.1": Machine("i-0abc", "127.0.0.1")}) as endpoint:
        monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", endpoint)
        yield aws


def upload(aws: Moto, text: str, **fields: Any) -> NodeHook:
    aws.client("s3").put_object(Bucket=BUCKET, Key="agent.sh", Body=text.encode())
    given = {"name": "agent", "when": "configured", "object": f"{BUCKET}/agent.sh", "roles": ("compute",)}
    return NodeHook.model_validate({**given, "sha256": sha256(text.encode()).hexdigest(), "timeout_s": 20, **fields})


def test_a_program_runs_once_with_its_arguments_and_the_nodes_name(bucket: Moto, tmp_path: Path) -> None:
    script = f'#!/bin/sh\necho "$MUSTER_NODE $MUSTER_ROLE $MUSTER_GROUP $*" >> {tmp_path}/ran\n'
    hook, done = upload(bucket, script, args=("a b", "c")), tmp_path / "done"
    for _ in range(2):
        run_hooks(select_hooks([hook], "configured", "compute", done), GPU, REGION, done)
    assert (tmp_path / "ran").read_text() == "gpu-3 compute gpu a b c\n"
    changed = hook.model_copy(update={"args": ("d",)})
    assert select_hooks([changed], "configured", "compute", done) == [changed], "other arguments: it runs again"


def test_a_program_waits_for_package_lists_that_user_data_fetches(bucket: Moto, tmp_path: Path) -> None:
    """apt does not: the program's own use of it would fail."""
    lock, fetched = tmp_path / "lock", tmp_path / "fetched"
    hook = upload(bucket, f"#!/bin/sh\nls {fetched}\n")
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)

        def end_fetch() -> None:
            fetched.touch()
            fcntl.flock(file, fcntl.LOCK_UN)

        fetching = threading.Timer(0.5, end_fetch)
        fetching.start()
        run_hooks([hook], GPU, REGION, tmp_path / "done", str(lock))
        fetching.join()


def test_programs_are_selected_by_time_and_role(tmp_path: Path) -> None:
    section = aws_section(
        spec(
            aws={
                "region": REGION,
                "hooks": {
                    "b": {"script": "s3://tools/b", "sha256": "b" * 64, "roles": ["compute"]},
                    "a": {"script": "s3://tools/x/a", "sha256": "a" * 64, "when": "start"},
                    "c": {"script": "s3://tools/x/a", "sha256": "a" * 64},
                },
            }
        )
    )
    assert section is not None
    every = node_hooks(section)
    selected = {
        (when, role): [hook.name for hook in select_hooks(every, when, role, tmp_path)]
        for when in ("start", "configured")
        for role in ("controller", "compute")
    }
    assert selected == {
        ("start", "controller"): ["a"],
        ("configured", "controller"): ["c"],
        ("start", "compute"): ["a"],
        ("configured", "compute"): ["b", "c"],
    }
    assert objects_by_role(section) == {
        "controller": ["tools/x/a"],
        "login": ["tools/x/a"],
        "compute": ["tools/b", "tools/x/a"],
    }


def test_a_program_with_another_hash_is_not_run(bucket: Moto, tmp_path: Path) -> None:
    hook = upload(bucket, f"#!/bin/sh\ntouch {tmp_path}/ran\n", sha256="0" * 64)
    with pytest.raises(
        BootstrapError, match=r"node gpu-3, step hook agent: s3://my-tools/agent\.sh has sha256 "
    ) as error:
        run_hooks([hook], GPU, REGION, tmp_path)
    assert "expected 0000" in error.value.line
    assert "`aws.hooks.agent`: script and sha256 (`sha256sum`)" in error.value.fix
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("script", "timeout_s", "line"),
    [
        ("#!/bin/sh\necho starting\necho 'no licence' >&2\nexit 3\n", 240, "exit code 3: no licence"),
        ("#!/bin/sh\nexit 1\n", 240, "exit code 1: no output"),
        ("#!/bin/sh\necho waiting\nexec sleep 600\n", 3, "not finished after 3 s: waiting"),
        ("#!/no/such/shell\n", 240, "cannot be executed: No such file or directory: no output"),
    ],
    ids=["exit code", "silent", "timeout", "no interpreter"],
)
def test_a_failure_names_its_reason_and_the_program_runs_again(
    bucket: Moto, tmp_path: Path, script: str, timeout_s: int, line: str
) -> None:
    hook = upload(bucket, script, timeout_s=timeout_s)
    with pytest.raises(BootstrapError) as error:
        run_hooks([hook], GPU, REGION, tmp_path)
    assert (error.value.step, error.value.line) == ("hook agent", line)
    assert select_hooks([hook], "configured", "compute", tmp_path) == [hook]


@pytest.mark.parametrize("role", ["compute", "controller"])
def test_programs_run_before_the_set_up_and_before_the_node_runs_jobs(
    role: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[object] = []
    monkeypatch.setattr(set_up, "_run_stage", lambda *arguments, **_: order.append(tuple(arguments[3])))
    monkeypatch.setattr(set_up, "check_machine", lambda *_: order.append("check"))
    monkeypatch.setattr(set_up, "run_hooks", lambda chosen, *_: order.extend(hook.when for hook in chosen))
    monkeypatch.setattr("bootstrap.restart.read_request", lambda _: "")
    monkeypatch.setattr(set_up.Reporter, "report", lambda *_: None)
    given = {"object": "tools/a", "sha256": "a" * 64, "roles": (role,), "timeout_s": 20}
    both = tuple(NodeHook(name=when, when=when, **given) for when in ("start", "configured"))
    node = GPU if role == "compute" else CONTROLLER
    assert set_up.set_up(node, desired(), cloud(hooks=both), set_up.Reporter("", "", "")) == ""
    assert order[:2] == ["start", registry.KERNEL]
    if role == "compute":
        assert order[-3:] == ["configured", registry.MEMBERS, "check"]
    else:
        assert order[-3:] == ["check", "configured", registry.CHECKED]


@pytest.mark.parametrize(("changing", "readings"), [((), 1), (registry.KERNEL, 2)], ids=["baked", "not baked"])
def test_facts_are_read_again_only_after_a_change(
    changing: tuple[Step, ...], readings: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is left to do in the first stage of a machine from a baked image."""
    read: list[object] = []
    monkeypatch.setattr(set_up, "collect_facts", lambda *_: read.append("facts") or Facts())  # type: ignore[func-returns-value]  # returns the facts
    monkeypatch.setattr(set_up, "execute_steps", lambda *_: None)
    actions = {step.name: [object()] if step in changing else [] for step in registry.ON_CLOUD}
    planned = {name: SimpleNamespace(actions=todo) for name, todo in actions.items()}
    monkeypatch.setattr(set_up, "plan_steps", lambda *_: {GPU.name: planned})
    monkeypatch.setattr(set_up, "check_machine", lambda *_: None)
    monkeypatch.setattr("bootstrap.restart.read_request", lambda _: "")
    assert set_up.set_up(GPU, desired(), cloud(), set_up.Reporter("", "", "")) == ""
    assert len(read) == readings


def test_facts_are_read_again_after_a_program_of_the_spec(monkeypatch: pytest.MonkeyPatch) -> None:
    passed: list[object] = []
    monkeypatch.setattr(set_up, "_run_stage", lambda *_, facts: passed.append(facts) or Facts())  # type: ignore[func-returns-value]  # returns the facts
    monkeypatch.setattr(set_up, "check_machine", lambda *_: None)
    monkeypatch.setattr(set_up, "run_hooks", lambda *_: None)
    monkeypatch.setattr("bootstrap.restart.read_request", lambda _: "")
    hook = NodeHook(name="a", when="configured", object="tools/a", sha256="a" * 64, roles=("compute",), timeout_s=20)
    assert set_up.set_up(GPU, desired(), cloud(hooks=(hook,)), set_up.Reporter("", "", "")) == ""
    assert passed == [None, Facts(), Facts(), None]
