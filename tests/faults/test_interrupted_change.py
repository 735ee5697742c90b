"""Change and removal that are interrupted or started twice: the next command goes on, and nothing is corrupted."""

from __future__ import annotations

from tests.faults.interruption import containers, kill_at, lose_state
from tests.harness import Stack, wait_until


def test_growth_that_was_killed_goes_on_and_the_old_nodes_stay(healthy: Stack) -> None:
    before, count = healthy.machine_ids(), containers(healthy)
    grow(healthy)
    kill_at(healthy, "the new machine exists", lambda stack: containers(stack) > count)
    healthy.up()
    assert {name: healthy.machine_ids()[name] for name in before} == before
    assert all_nodes_answer(healthy)


def test_of_two_ups_at_once_the_second_is_refused_or_waits(healthy: Stack) -> None:
    count = containers(healthy)
    grow(healthy)
    first = healthy.start("up")
    wait_until(lambda: containers(healthy) > count or first.poll() is not None, "the first up works", 60)
    refused = healthy.up(check=False)
    output = refused.stdout + refused.stderr
    assert refused.returncode != 0
    assert str(first.pid) in output or "another" in output.lower()
    assert "nothing to change" in healthy.up("--wait").stdout.lower()
    assert first.wait(timeout=10) == 0, (healthy.home / "started.log").read_text()


def test_a_lost_state_is_adopted_by_up(healthy: Stack) -> None:
    before = healthy.machine_ids()
    lose_state(healthy)
    healthy.up()
    assert healthy.machine_ids() == before
    assert all_nodes_answer(healthy)


def test_a_killed_teardown_is_completed_by_the_next(healthy: Stack) -> None:
    count = containers(healthy)
    kill_at(healthy, "the first machine is gone", lambda stack: containers(stack) < count, "teardown", "--yes")
    healthy.muster("teardown", "--yes")
    assert healthy.exists() == []


def grow(stack: Stack) -> None:
    stack.spec["groups"]["gpu"]["count"] += 1


def all_nodes_answer(stack: Stack) -> bool:
    count = stack.spec["groups"]["gpu"]["count"]
    return len(stack.ssh("controller", f"srun -p gpu -N{count} hostname").splitlines()) == count
