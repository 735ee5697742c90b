"""Changes and removals that are interrupted or started twice: the next command continues, and nothing is corrupted."""

from __future__ import annotations

import time

import pytest

from tests.fault_matrix.times import record
from tests.faults.interruption import containers, kill_at, lose_state
from tests.harness import Stack, wait_until


@pytest.mark.fault(22)
def test_killed_growth_continues_and_keeps_the_old_nodes(healthy: Stack) -> None:
    before, count = healthy.machine_ids(), containers(healthy)
    grow(healthy)
    kill_at(healthy, "the new machine exists", lambda stack: containers(stack) > count)
    healthy.up()
    assert {name: healthy.machine_ids()[name] for name in before} == before
    assert all_nodes_answer(healthy)


@pytest.mark.nightly
def test_second_concurrent_up_fails_or_waits(healthy: Stack) -> None:
    count = containers(healthy)
    grow(healthy)
    first = healthy.start("up")
    wait_until(lambda: containers(healthy) > count or first.poll() is not None, "the first up works")
    refused = healthy.up(check=False)
    output = refused.stdout + refused.stderr
    assert refused.returncode != 0
    assert str(first.pid) in output or "another" in output.lower()
    assert "nothing to change" in healthy.up("--wait").stdout.lower()
    assert first.wait(timeout=450) == 0, (healthy.home / "started.log").read_text()


@pytest.mark.nightly
@pytest.mark.fault(22)
def test_up_adopts_the_machines_of_a_lost_state(healthy: Stack) -> None:
    before = healthy.machine_ids()
    lose_state(healthy)
    healthy.up()
    assert healthy.machine_ids() == before
    assert all_nodes_answer(healthy)


@pytest.mark.fault(23)
def test_next_teardown_completes_a_killed_teardown(healthy: Stack) -> None:
    count = containers(healthy)
    kill_at(healthy, "the first machine is gone", lambda stack: containers(stack) < count, "teardown", "--yes")
    began = time.monotonic()
    healthy.muster("teardown", "--yes")
    assert healthy.exists() == []
    record(23, recover_s=time.monotonic() - began)


def grow(stack: Stack) -> None:
    stack.spec["groups"]["gpu"]["count"] += 1


def all_nodes_answer(stack: Stack) -> bool:
    count = stack.spec["groups"]["gpu"]["count"]
    return len(stack.ssh("controller", f"srun -p gpu -N{count} hostname").splitlines()) == count
