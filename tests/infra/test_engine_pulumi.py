"""`infra.engine` with the real Pulumi CLI and a program of one resource: runs, failures, kills and locks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from infra.engine import environment, events, history, lock, pulumi
from infra.engine.process import process_lives
from infra.home import Home, StackHome

pytestmark = pytest.mark.engine

REPO = Path(__file__).parents[2]
PROVIDER = """
    import os
    import time
    from pathlib import Path
    from pulumi.dynamic import CreateResult, DiffResult, ReadResult, Resource, ResourceProvider, UpdateResult

    class Provider(ResourceProvider):
        serialize_as_secret_always = False

        def create(self, props):
            with Path(props["trace"]).open("a") as trace:
                trace.write("create\\n")
            time.sleep(props["sleep"])
            if props["fail"]:
                raise Exception(props["fail"])
            return CreateResult("thing", props)

        def read(self, id_, props):
            with Path(props["trace"]).open("a") as trace:
                trace.write(f"read by {os.getpid()}\\n")
            return ReadResult(id_, props)

        def diff(self, id_, olds, news):
            with Path(news["trace"]).open("a") as trace:
                trace.write(f"compared by {os.getpid()}\\n")
            return DiffResult(changes=olds["size"] != news["size"])

        def update(self, id_, olds, news):
            return UpdateResult(news)

    class Thing(Resource):
        def __init__(self, name, props):
            super().__init__(Provider(), name, props)
"""
PROGRAM = """
    import pulumi
    from thing import Thing
    config = pulumi.Config("muster").require_object("cluster")
    thing = Thing("thing", config)
    pulumi.export("size", config["size"])
    pulumi.export("key", pulumi.Output.secret("very secret"))
"""
# A stand-in for `muster` that a test can kill: it holds the stack's lock and runs one `up`.
CALLER = """
    import os, sys
    from pathlib import Path
    from infra.engine import environment, lock, pulumi
    from infra.home import Home
    home = Home.of(os.environ, repo=Path(sys.argv[1]))
    stack = home.stack("s")
    with lock.held(stack, "up", wait=False, say=print) as held:
        print(pulumi.up(stack, pulumi.Caller(held, lambda: None, print), environment.RunOptions()))
"""


@pytest.fixture
def stack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StackHome:
    repo = tmp_path / "repo"
    (repo / "infra").mkdir(parents=True)
    (repo / "stacks").mkdir()
    (repo / ".venv").symlink_to(REPO / ".venv")
    (repo / "infra" / "thing.py").write_text(textwrap.dedent(PROVIDER))
    (repo / "infra" / "__main__.py").write_text(textwrap.dedent(PROGRAM))
    (repo / "Pulumi.yaml").write_text("name: muster\nruntime: python\nmain: infra\nstackConfigDir: stacks\n")
    monkeypatch.setenv("MUSTER_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("MUSTER_STACKS", raising=False)
    return Home.of(os.environ, repo=repo).stack("s")


def write_stack_file(stack: StackHome, *, size: int = 1, sleep: float = 0, fail: str = "") -> None:
    trace = stack.home.repo / "trace"
    stack.file.write_text(
        f"config:\n  muster:cluster: {{size: {size}, sleep: {sleep}, fail: '{fail}', trace: {trace}}}\n"
    )


def up(stack: StackHome, say: Callable[[str], None] = print) -> tuple[int, events.Result]:
    with lock.held(stack, "up", wait=False, say=say) as held:
        return pulumi.up(stack, pulumi.Caller(held, lambda: None, say), environment.RunOptions())


def count_creates(stack: StackHome) -> int:
    trace = stack.home.repo / "trace"
    return trace.read_text().count("create") if trace.exists() else 0


def wait_until(condition: Callable[[], bool], seconds: float = 240) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
    return condition()


def list_processes(stack: StackHome) -> list[int]:
    """Return the other processes that have this stack's home in their environment."""
    pids = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            carries = f"MUSTER_HOME={stack.home.root}".encode() in (folder / "environ").read_bytes()
        except OSError:
            continue
        if carries and int(folder.name) != os.getpid() and process_lives(int(folder.name)):
            pids.append(int(folder.name))
    return pids


def start_up(stack: StackHome) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(CALLER), str(stack.home.repo)],
        cwd=REPO,
        text=True,
        start_new_session=True,
    )


def test_up_change_and_destroy_leave_the_stack_file_unchanged(stack: StackHome) -> None:
    write_stack_file(stack)
    tracked = stack.file.read_bytes()
    code, first = up(stack)
    assert (code, first.changed, first.failures) == (0, True, ())
    assert pulumi.outputs(stack) == {"size": 1, "key": "[secret]"}
    code, second = up(stack)
    assert (code, second.changed) == (0, False)
    assert stack.file.read_bytes() == tracked
    assert "encryptionsalt" in stack.working_copy.read_text()
    write_stack_file(stack, size=2)
    assert up(stack)[1].changes["update"] == 1
    home_content = b"".join(file.read_bytes() for file in stack.home.root.rglob("*") if file.is_file())
    assert b"muster" in home_content
    assert b"very secret" not in home_content
    with lock.held(stack, "teardown", wait=False, say=print) as held:
        assert pulumi.destroy(stack, pulumi.Caller(held, lambda: None, print))[0] == 0
    pulumi.forget(stack)
    assert not stack.state.exists()
    assert pulumi.outputs(stack) == {}


def test_commands_do_not_list_packages(stack: StackHome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pulumi's language host would run `python -m pip list`, which takes a second in every run."""
    (tmp_path / "pip.py").write_text("raise SystemExit('pip was run')\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]))
    write_stack_file(stack)
    assert up(stack)[0] == 0
    with lock.held(stack, "teardown", wait=False, say=print) as held:
        assert pulumi.destroy(stack, pulumi.Caller(held, lambda: None, print))[0] == 0


def test_one_provider_serves_the_refresh_and_the_update(stack: StackHome) -> None:
    write_stack_file(stack)
    assert up(stack)[0] == 0
    trace = stack.home.repo / "trace"
    trace.unlink()
    assert up(stack)[0] == 0
    steps = [line.split(" by ") for line in trace.read_text().splitlines()]
    assert {step for step, _ in steps} == {"read", "compared"}
    assert len({pid for _, pid in steps}) == 1


def test_home_path_with_url_characters(stack: StackHome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "my home, 100%25 #1?a=b"
    monkeypatch.setenv("MUSTER_HOME", str(home))
    other = Home.of(os.environ, repo=stack.home.repo).stack("s")
    write_stack_file(other)
    assert up(other)[0] == 0
    assert other.state.is_file()
    assert pulumi.outputs(other)["size"] == 1
    assert up(other)[1].changed is False
    assert {path.name for path in tmp_path.iterdir()} == {"repo", home.name}


def test_failure_is_the_message_of_the_provider(stack: StackHome) -> None:
    write_stack_file(stack, fail="node gpu-1, step users: no disk. Fix: free some.")
    code, result = up(stack)
    assert code != 0
    recorded = history.last_run(stack)
    assert recorded is not None
    assert (recorded.kind, recorded.good) == ("update", False)
    assert result.failures == (events.Failure("thing", "node gpu-1, step users: no disk. Fix: free some."),)


def test_program_error_is_a_single_line(stack: StackHome) -> None:
    write_stack_file(stack)
    (stack.home.repo / "infra" / "__main__.py").write_text("import missing_module\n")
    code, result = up(stack)
    assert code != 0
    (failure,) = result.failures
    assert "missing_module" in failure.message
    assert "\n" not in failure.message


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("program", "module"),
    [
        pytest.param("import asyncio\nraise asyncio.CancelledError('odd')\n", "", id="cancelled"),
        pytest.param("import broken\n", "raise SystemExit('odd')\n", id="a module that exits"),
    ],
)
def test_a_program_that_ends_with_no_exception_ends_the_run(stack: StackHome, program: str, module: str) -> None:
    """What does not derive from Exception ends a thread or a process: the engine would wait forever."""
    write_stack_file(stack)
    (stack.home.repo / "infra" / "broken.py").write_text(module)
    (stack.home.repo / "infra" / "__main__.py").write_text(program)
    code, result = up(stack)
    assert code != 0
    (failure,) = result.failures
    assert "odd" in failure.message


@pytest.mark.timeout(300)
def test_an_sdk_that_cannot_be_imported_ends_the_run(
    stack: StackHome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "dill.py").write_text("raise ImportError('no dill here')\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]))
    write_stack_file(stack)
    code, result = up(stack)
    assert code != 0
    assert any("no dill here" in failure.message for failure in result.failures)


def test_killed_up_leaves_no_process_and_the_next_up_succeeds(stack: StackHome) -> None:
    write_stack_file(stack, sleep=600)
    killed = start_up(stack)
    assert wait_until(lambda: count_creates(stack) == 1)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.wait()
    assert wait_until(lambda: list_processes(stack) == [])
    write_stack_file(stack)
    messages: list[str] = []
    code, result = up(stack, messages.append)
    assert (code, result.changed) == (0, True)
    assert any("killed" in line for line in messages)
    assert lock.pulumi_holders(stack) == []
    assert up(stack)[1].changed is False


@pytest.mark.nightly
def test_killed_pulumi_is_a_failure_and_the_next_up_succeeds(stack: StackHome) -> None:
    write_stack_file(stack, sleep=600)
    caller = start_up(stack)
    assert wait_until(lambda: count_creates(stack) == 1)
    (holder,) = lock.pulumi_holders(stack)
    os.kill(holder.pid, signal.SIGKILL)
    assert caller.wait(timeout=240) == 0
    assert wait_until(lambda: list_processes(stack) == [])
    write_stack_file(stack)
    assert up(stack)[0] == 0


@pytest.mark.nightly
def test_pulumi_started_by_hand_is_detected_while_it_runs(stack: StackHome) -> None:
    write_stack_file(stack)
    assert up(stack)[0] == 0
    assert pulumi.find_running_pulumi(stack) is None
    env = environment.environment(os.environ, stack.home)
    stack.pulumi_locks.mkdir(parents=True, exist_ok=True)
    write_stack_file(stack, size=3)
    by_hand = subprocess.Popen(
        ["pulumi", "up", "--yes", "--skip-preview", "-s", "s"],
        cwd=stack.home.repo,
        env=env,
        stdout=subprocess.DEVNULL,
    )
    holders: list[Any] = []

    def find() -> bool:
        """Look once at a time: it may have ended by the next look."""
        holders.append(pulumi.find_running_pulumi(stack))
        return holders[-1] is not None

    wait_until(lambda: find() or by_hand.poll() is not None)
    assert holders[-1] is not None
    assert holders[-1].pid == by_hand.pid
    assert by_hand.wait() == 0
    assert pulumi.find_running_pulumi(stack) is None
    recorded = history.last_run(stack)
    assert recorded is not None
    assert (recorded.kind, recorded.good) == ("update", True)
    assert abs(recorded.ended - time.time()) < 300
    assert up(stack) == (0, events.Result({"same": 2}, ()))


def test_unreadable_state_is_renamed(stack: StackHome) -> None:
    write_stack_file(stack)
    assert up(stack)[0] == 0
    stack.state.write_text(stack.state.read_text()[:100])
    messages: list[str] = []
    assert up(stack, messages.append)[0] == 0
    assert any("the state file is unreadable" in line for line in messages)
    assert count_creates(stack) == 2
    assert up(stack)[1].changed is False


def test_lost_passphrase_error_names_the_file(stack: StackHome) -> None:
    write_stack_file(stack)
    assert up(stack)[0] == 0
    stack.home.passphrase.unlink()
    code, result = up(stack)
    assert code != 0
    (failure,) = result.failures
    assert str(stack.home.passphrase) in failure.message
    assert "Fix: restore the old passphrase" in failure.message


@pytest.mark.nightly
def test_deleted_state_is_created_again(stack: StackHome) -> None:
    write_stack_file(stack)
    assert up(stack)[0] == 0
    subprocess.run(["rm", "-rf", str(stack.home.state), str(stack.folder)], check=True)
    assert up(stack)[0] == 0
    assert count_creates(stack) == 2
