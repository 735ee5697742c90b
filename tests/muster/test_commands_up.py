"""`muster up`: the stored result, the message on failure, and outputs that are no longer valid."""

from __future__ import annotations

import json
import subprocess
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from bootstrap.progress import Event
from cluster.inventory import NodeSet
from cluster.spec import ClusterSpec
from infra.engine import lock
from infra.engine.environment import RunOptions
from infra.engine.events import Failure, Result
from infra.engine.stop import Stop
from infra.home import Home, StackHome
from infra.targets.aws.target import AwsTarget
from infra.targets.local.target import LocalTarget
from infra.targets.registry import plan_of as plan
from infra.targets.registry import read_spec as read
from infra.targets.target import Console
from muster.commands import last_up, output, stack_spec, status, up
from tests.harness import small_spec

REPO = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("last", "shown"),
    [(None, True), ("ready", True), ("failed", False), ("running", False)],
)
def test_ready_is_shown_only_if_the_last_up_succeeded(last: str | None, shown: bool) -> None:
    ended = last_up.LastUp(last, "2026-01-01T00:00:00+00:00") if last else None
    shown_outputs = output.drop_stale_ready({"ready": {"nodes": []}, "cluster": "demo"}, ended)
    assert ("ready" in shown_outputs) is shown
    assert shown_outputs["cluster"] == "demo"


def test_last_up_is_stored(tmp_path: Path) -> None:
    stack = Home.of({"MUSTER_HOME": str(tmp_path)}).stack("s")
    assert last_up.read_last_up(stack) is None
    ended = last_up.LastUp("ready", "2026-01-01T00:00:00+00:00", 12.5, True, {"machines": 2.0})
    last_up.write_last_up(stack, ended)
    assert last_up.read_last_up(stack) == ended
    stack.last_up.write_text("{")
    assert last_up.read_last_up(stack) is None


CAPACITY = (
    "1 error occurred:\n\t* creating EC2 Instance: operation error EC2: RunInstances, exceeded maximum number of "
    "attempts, 9, https response error StatusCode: 500, api error InsufficientInstanceCapacity: We currently do not "
    "have sufficient m7i.xlarge capacity in the Availability Zone you requested (us-east-1a)."
)


@pytest.mark.parametrize(
    ("message", "fix"),
    [
        (CAPACITY, "that zone has no capacity now: run `make up STACK=s` again later to continue"),
        ("api error ExpiredTokenException: The security token is expired", "log in again (`aws sso login`), then run"),
        ("api error AccessDeniedException: User: x is not authorized to perform: fsx:CreateFileSystem", "docs/aws.md"),
        ("api error EntityAlreadyExists: Role with name muster-pair-controller already exists", "another `name`"),
    ],
)
def test_aws_errors_come_with_a_fix(tmp_path: Path, message: str, fix: str) -> None:
    stack = Home.of({"MUSTER_HOME": str(tmp_path)}).stack("s")
    message = up.build_failure(stack, AwsTarget(), Result({}, (Failure("controller", message),))).what
    assert message.count("fix: ") == 1
    assert fix in message.partition("fix: ")[2]


def test_a_message_with_its_own_fix_gets_no_second_fix(tmp_path: Path) -> None:
    stack = Home.of({"MUSTER_HOME": str(tmp_path)}).stack("s")
    ours = "groups.gpu.capacity: none (us-east-1a on-demand InsufficientInstanceCapacity). Fix: name more zones"
    message = up.build_failure(stack, AwsTarget(), Result({}, (Failure("nodes-gpu", ours),))).what
    assert message.count("fix: ") == 1
    assert "fix: name more zones" in message


def write_pulumi_run(stack: StackHome, kind: str, result: str, ended: float) -> None:
    stack.pulumi_history.mkdir(parents=True, exist_ok=True)
    record = {"kind": kind, "result": result, "startTime": int(ended) - 30, "endTime": int(ended)}
    (stack.pulumi_history / f"s-{int(ended * 1e9)}.history.json").write_text(json.dumps(record))


@pytest.mark.parametrize(
    ("ours", "pulumi_runs", "result"),
    [
        (None, [("update", "succeeded", 100)], "ready"),
        (None, [("update", "failed", 100)], "failed"),
        ("ready", [("update", "failed", 100)], "failed"),
        ("failed", [("update", "succeeded", 100)], "ready"),
        ("running", [("update", "succeeded", 100)], "ready"),
        ("failed", [("update", "succeeded", -100)], "failed"),
        ("ready", [("update", "failed", -100)], "ready"),
        ("failed", [("refresh", "succeeded", 100)], "failed"),
        ("failed", [("update", "succeeded", 100), ("refresh", "failed", 200)], "ready"),
        ("ready", [("destroy", "failed", 100)], "failed"),
        ("ready", [("destroy", "succeeded", 100)], None),
        (None, [], None),
        ("interrupted", [("update", "failed", 1)], "interrupted"),
        ("interrupted", [("update", "failed", 100)], "failed"),
    ],
)
def test_latest_run_decides_the_result(
    tmp_path: Path, ours: str | None, pulumi_runs: list[tuple[str, str, float]], result: str | None
) -> None:
    stack = Home.of({"MUSTER_HOME": str(tmp_path)}).stack("s")
    if ours:
        last_up.write_last_up(stack, last_up.LastUp(ours, "2026-01-01T00:00:00+00:00", 12.5))
    for kind, ended_as, after in pulumi_runs:
        write_pulumi_run(stack, kind, ended_as, datetime(2026, 1, 1, tzinfo=UTC).timestamp() + 12.5 + after)
    last = last_up.read_last_up(stack)
    assert (last.result if last else None) == result


def test_time_is_that_of_the_latest_run(tmp_path: Path) -> None:
    stack = Home.of({"MUSTER_HOME": str(tmp_path)}).stack("s")
    last_up.write_last_up(stack, last_up.LastUp("ready", "2026-01-01T00:00:00+00:00", 12.5))
    write_pulumi_run(stack, "update", "succeeded", datetime(2026, 1, 1, 1, 0, 30, tzinfo=UTC).timestamp())
    last = last_up.read_last_up(stack)
    assert last is not None
    assert last.when == datetime(2026, 1, 1, 1, tzinfo=UTC)


def test_pulumi_lock_counts_as_running(tmp_path: Path) -> None:
    stack = Home.of({"MUSTER_HOME": str(tmp_path)}).stack("s")
    last_up.write_last_up(stack, last_up.LastUp("ready", "2026-01-01T00:00:00+00:00", 12.5))
    stack.pulumi_locks.mkdir(parents=True)
    (stack.pulumi_locks / "a.json").write_text('{"pid": 1, "hostname": "h", "timestamp": "2026-01-02T00:00:00.1Z"}')
    last = last_up.read_last_up(stack)
    assert last is not None
    assert last.result == "running"


def test_an_up_without_a_result_is_held_only_while_its_process_lives(tmp_path: Path) -> None:
    stack = Home.of({"MUSTER_HOME": str(tmp_path)}).stack("s")
    assert not lock.is_held_since(stack, datetime.now(UTC))
    with lock.held_here(stack, "up", wait=False, say=print):
        began = datetime.now(UTC).replace(microsecond=0)
        assert lock.is_held_since(stack, began)
        # Of an `up` that was killed an hour ago: another command has the lock now.
        assert not lock.is_held_since(stack, began - timedelta(hours=1))
    note = json.loads(stack.lock.read_text())
    with subprocess.Popen(["true"]) as ended:
        pass
    stack.lock.write_text(json.dumps({**note, "pid": ended.pid}))
    assert not lock.is_held_since(stack, began)


def test_status_tells_a_first_up_that_is_running_from_one_that_was_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MUSTER_HOME", str(tmp_path))
    stack = Home.of({"MUSTER_HOME": str(tmp_path)}).stack("local")
    with lock.held_here(stack, "up", wait=False, say=print):
        last_up.write_last_up(stack, last_up.LastUp("running", datetime.now(UTC).isoformat()))
        status.status("local")
        assert capsys.readouterr().out == "stack local is not up yet: its `up` is running\n"
    stack.lock.unlink()
    with pytest.raises(Stop) as stop:
        status.status("local")
    assert stop.value.what == "stack local is not up: its last `up` was killed"
    assert stop.value.fix == f"`make up`; log: {stack.log('up')}"


@pytest.mark.parametrize(
    ("hour", "result"), [("2026-01-01T00:00:05.1Z", "interrupted"), ("2026-01-02T00:00:00.1Z", "running")]
)
def test_lock_of_an_interrupted_up_does_not_count_as_running(tmp_path: Path, hour: str, result: str) -> None:
    stack = Home.of({"MUSTER_HOME": str(tmp_path)}).stack("s")
    last_up.write_last_up(stack, last_up.LastUp("interrupted", "2026-01-01T00:00:00+00:00", 12.5))
    stack.pulumi_locks.mkdir(parents=True)
    (stack.pulumi_locks / "a.json").write_text(json.dumps({"pid": 1, "hostname": "h", "timestamp": hour}))
    last = last_up.read_last_up(stack)
    assert last is not None
    assert last.result == result


def test_failure_is_formatted_as_one_block() -> None:
    stack = Home.of({"MUSTER_HOME": "/h"}).stack("s")
    message = "node gpu-2, step slurmd: fatal: no key. Log: journalctl -u slurmd. Fix: put the key there."
    stop = up.build_failure(stack, LocalTarget(), Result({}, (Failure("slurm", message), Failure("", "stopped"))))
    assert stop.what.splitlines() == [
        "up failed: slurm",
        "  node gpu-2, step slurmd: fatal: no key.",
        "  log: journalctl -u slurmd.",
        "  fix: put the key there.",
        "  stopped",
        "full log of Pulumi: /h/s/up.log",
    ]


def test_cancelled_up_is_reported_as_interrupted() -> None:
    stop = up.build_failure(Home.of({}).stack("s"), LocalTarget(), Result({}, (Failure("", "update canceled"),)))
    assert (stop.what, stop.code) == ("up was interrupted", 130)
    assert stop.fix == "`make up STACK=s` continues, `make teardown STACK=s` removes what exists"
    cut_short = Failure("slurm", "node gpu-1: connection lost")
    assert (
        up.build_failure(
            Home.of({}).stack("s"), LocalTarget(), Result({}, (cut_short, Failure("", "update canceled")))
        ).code
        == 130
    )


def run_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ended: BaseException | tuple[int, Result]) -> StackHome:
    def fake_up(stack: StackHome, _caller: object, _options: RunOptions) -> tuple[int, Result]:
        if isinstance(ended, BaseException):
            raise ended
        stack.progress.write_text(json.dumps(asdict(Event("machines", "gpu-1", "create", "changed"))) + "\n")
        return ended

    monkeypatch.setattr(up.pulumi, "up", fake_up)
    return Home.of({"MUSTER_HOME": str(tmp_path)}).stack("s")


def test_up_that_fails_says_how_long_retries_took(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stack = Home.of({"MUSTER_HOME": str(tmp_path)}).stack("s")
    stack.folder.mkdir()
    # Tests before this one may have left retries in this process.
    AwsTarget().describe_retries(stack)

    def fail() -> None:
        with up.report_retries(stack, AwsTarget()):
            stack.progress.write_text(json.dumps({"retried": "SlowDown", "seconds": 9.2}) + "\n")
            raise Stop("up failed")

    with pytest.raises(Stop, match="up failed"):
        fail()
    line = "AWS throttled or could not answer 1 call of muster (1 SlowDown); retries took 9.2 s in all"
    assert capsys.readouterr().out.strip() == line
    with up.report_retries(stack, AwsTarget()):
        pass
    assert capsys.readouterr().out == "", "the retries of an earlier run do not count"


@pytest.mark.parametrize("ended", [KeyboardInterrupt(), (255, Result({}, (Failure("", "update canceled"),)))])
def test_interrupted_up_names_the_next_command_and_is_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ended: BaseException | tuple[int, Result]
) -> None:
    stack = run_up(tmp_path, monkeypatch, ended)
    with pytest.raises(Stop, match="was interrupted") as stop:
        up._run(stack, LocalTarget(), plan(ClusterSpec.model_validate(small_spec(name="s"))), 0, RunOptions())
    assert "`make up STACK=s` continues" in stop.value.fix
    last = last_up.read_last_up(stack)
    assert last is not None
    assert last.result == "interrupted"


@pytest.mark.parametrize(
    ("changes", "created"), [({"create": 9}, True), ({"update": 2, "same": 7}, False), ({"delete": 1}, False)]
)
def test_created_is_set_only_for_new_machines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, int], created: bool
) -> None:
    stack = run_up(tmp_path, monkeypatch, (0, Result(changes, ())))
    assert (
        up._run(stack, LocalTarget(), plan(ClusterSpec.model_validate(small_spec(name="s"))), 0, RunOptions()).created
        is created
    )


@pytest.mark.parametrize(
    ("stack", "description"),
    [
        ("local", "4 nodes"),
        ("aws-g6-pair", "controller, up to 2 autoscaled nodes"),
        ("aws-p5-autoscaled", "controller, login, up to 64 autoscaled nodes"),
        ("aws-p5en-lustre", "controller, login, 2 static nodes"),
        ("aws-full", "controller, login, 2 static nodes, up to 16 autoscaled nodes"),
    ],
)
def test_machines_are_described(stack: str, description: str) -> None:
    assert stack_spec.describe_machines(plan(read(REPO / "stacks" / f"Pulumi.{stack}.yaml"))) == description


class WaitingTarget(LocalTarget):
    """A target that records for which stacks `up` has waited, or is interrupted meanwhile."""

    def __init__(self, problem: BaseException | None = None) -> None:
        self.waits, self.problem = list[tuple[str, bool]](), problem

    def wait_for_launched_nodes(
        self, _spec: ClusterSpec, stack: StackHome, _console: Console, *, starting: bool = True
    ) -> None:
        self.waits.append((stack.name, starting))
        if self.problem:
            raise self.problem


@pytest.mark.parametrize(("static", "waits"), [(0, [("s", False)]), (2, [])])
def test_up_updates_nodes_that_slurm_may_have_launched(tmp_path: Path, static: int, waits: list[object]) -> None:
    spec = ClusterSpec.model_validate(small_spec(name="s"))
    nodes = NodeSet(group="gpu", count=2, static=static, cpus=8, memory_mb=1024)
    built = plan(spec).model_copy(update={"sets": (nodes,)})
    target = WaitingTarget()
    up._update_launched_nodes(Home.of({"MUSTER_HOME": str(tmp_path)}).stack("s"), target, spec, built)
    assert target.waits == waits


def test_up_that_is_interrupted_while_it_waits_for_nodes_can_be_continued(tmp_path: Path) -> None:
    spec = ClusterSpec.model_validate(small_spec(name="s"))
    nodes = NodeSet(group="gpu", count=2, static=0, cpus=8, memory_mb=1024)
    built = plan(spec).model_copy(update={"sets": (nodes,)})
    stack = Home.of({"MUSTER_HOME": str(tmp_path)}).stack("s")
    with pytest.raises(Stop, match="up was interrupted") as stop:
        up._update_launched_nodes(stack, WaitingTarget(KeyboardInterrupt()), spec, built)
    assert stop.value.code == 130
