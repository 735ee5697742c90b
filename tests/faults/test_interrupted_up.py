"""`kill -9` of all that belongs to an `up`, at several points: the next `up` heals it, or teardown removes it."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import docker
import pytest

from tests.harness import Spec, Stack, small_spec, wait_until

MakeStack = Callable[[str, Spec], Stack]


def progress(stack: Stack) -> str:
    log = stack.home / stack.name / "progress.jsonl"
    return log.read_text() if log.exists() else ""


def containers(stack: Stack) -> int:
    wanted = {"label": f"muster.cluster={stack.cluster}"}
    return len(docker.from_env().containers.list(all=True, filters=wanted, ignore_removed=True))


POINTS: dict[str, Callable[[Stack], bool]] = {
    "the first machine exists": lambda stack: containers(stack) >= 1,
    "bootstrap has begun": lambda stack: '"bootstrap"' in progress(stack),
    "the ready job runs": lambda stack: '"ready"' in progress(stack),
}
LATER: dict[str, Callable[[Stack], bool]] = {
    "the new machine exists": lambda stack: containers(stack) >= 4,
    "the first machine is gone": lambda stack: containers(stack) <= 3,
}


def kill_at(stack: Stack, point: str, *command: str) -> None:
    up = stack.start(*(command or ("up",)))
    wait_until(lambda: (POINTS | LATER)[point](stack) or up.poll() is not None, point, 120)
    assert up.poll() is None, "up ended before it could be killed"
    os.killpg(up.pid, signal.SIGKILL)
    up.wait()
    wait_until(lambda: not leftover_processes(stack), "no process of the killed up is left", 20)


def leftover_processes(stack: Stack) -> list[str]:
    """Processes that carry this stack's home in their environment."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            environ = Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            continue
        if f"MUSTER_HOME={stack.home}".encode() in environ and int(pid) != os.getpid():
            found.append(pid)
    return found


@pytest.mark.parametrize("point", list(POINTS))
def test_the_next_up_heals(make_stack: MakeStack, point: str) -> None:
    stack = make_stack("killed", small_spec(login={"enabled": False}))
    kill_at(stack, point)
    stack.up()
    assert stack.ssh("controller", "srun -p gpu -N2 hostname | sort").splitlines() == ["gpu-1", "gpu-2"]
    stack.muster("teardown", "--yes")
    assert stack.exists() == []


@pytest.mark.parametrize("point", ["the first machine exists", "bootstrap has begun"])
def test_teardown_removes(make_stack: MakeStack, point: str) -> None:
    stack = make_stack("killed", small_spec(login={"enabled": False}))
    kill_at(stack, point)
    stack.muster("teardown", "--yes")
    assert stack.exists() == []


def test_growth_that_was_killed_goes_on_and_the_old_nodes_stay(make_stack: MakeStack) -> None:
    stack = make_stack("killed", small_spec(login={"enabled": False}))
    stack.up()
    before = stack.machine_ids()
    stack.spec["groups"]["gpu"]["count"] = 3
    kill_at(stack, "the new machine exists")
    stack.up()
    assert {name: stack.machine_ids()[name] for name in before} == before
    assert len(stack.ssh("controller", "srun -p gpu -N3 hostname").splitlines()) == 3
    kill_at(stack, "the first machine is gone", "teardown", "--yes")
    stack.muster("teardown", "--yes")
    assert stack.exists() == []


def test_two_ups_at_once_one_is_refused_and_nothing_is_corrupt(make_stack: MakeStack) -> None:
    stack = make_stack("twice", small_spec(login={"enabled": False}))
    first = stack.start("up")
    wait_until(lambda: containers(stack) >= 1 or first.poll() is not None, "the first up works", 60)
    second = stack.up(check=False)
    assert second.returncode != 0
    assert str(first.pid) in second.stdout + second.stderr or "another" in (second.stdout + second.stderr).lower()
    assert first.wait(timeout=300) == 0, (stack.home / "started.log").read_text()
    assert "nothing to change" in stack.up().stdout.lower()
    stack.muster("teardown", "--yes")
    assert stack.exists() == []


def test_a_second_up_may_wait_for_the_first(make_stack: MakeStack) -> None:
    stack = make_stack("twice", small_spec(login={"enabled": False}))
    first = stack.start("up")
    wait_until(lambda: containers(stack) >= 1 or first.poll() is not None, "the first up works", 60)
    assert "nothing to change" in stack.up("--wait").stdout.lower()
    assert first.wait(timeout=10) == 0
    stack.muster("teardown", "--yes")


def test_a_lost_state_is_adopted_by_up(make_stack: MakeStack) -> None:
    stack = make_stack("lost", small_spec(login={"enabled": False}))
    stack.up()
    before = stack.machine_ids()
    lose_state(stack)
    stack.up()
    assert stack.machine_ids() == before
    assert len(stack.ssh("controller", "srun -p gpu -N2 hostname").splitlines()) == 2
    stack.muster("teardown", "--yes")
    assert stack.exists() == []


def test_a_lost_state_is_removed_by_teardown(make_stack: MakeStack) -> None:
    stack = make_stack("lost", small_spec(groups={"cpu": {"count": 1}}, login={"enabled": False}))
    stack.up()
    lose_state(stack)
    receipt = stack.muster("teardown", "--yes").stdout
    assert stack.exists() == []
    assert f"muster-{stack.cluster}-cpu-1" in receipt


def lose_state(stack: Stack) -> None:
    subprocess.run(["rm", "-rf", str(stack.home / "state"), str(stack.home / stack.name)], check=True)
