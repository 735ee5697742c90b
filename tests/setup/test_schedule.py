"""Phases start when their dependencies are done, run concurrently otherwise, and stop when one fails."""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from setup.facts import Facts
from setup.registry import NAMES, PHASES, dependencies
from setup.run import SetupError, StoppedError, raise_if_stopped
from setup.schedule import PhaseResult, Record, run_concurrently, started_engine
from tests.setup.machine import ALL, machine

WAIT_S = 60


def test_a_task_starts_after_everything_it_depends_on() -> None:
    events: list[str] = []
    lock = threading.Lock()

    def task(name: str) -> Callable[[], None]:
        def work() -> None:
            for event in ("starts", "ends"):
                with lock:
                    events.append(f"{name} {event}")

        return work

    graph = {"apt": (), "venv": ("apt",), "docker": ("apt",), "image": ("docker",), "env": ("image", "venv")}
    assert run_concurrently({name: task(name) for name in reversed(graph)}, graph) == {}
    for name, others in graph.items():
        for other in others:
            assert events.index(f"{other} ends") < events.index(f"{name} starts")
    assert len(events) == 2 * len(graph)


def test_independent_tasks_run_concurrently() -> None:
    """Each task waits until all have started, so running them one after the other would time out."""
    barrier = threading.Barrier(3, timeout=WAIT_S)
    tasks = {name: lambda: _discard(barrier.wait()) for name in ("venv", "pulumi", "docker")}
    assert run_concurrently(tasks, {}) == {}


def test_a_slow_branch_does_not_delay_another() -> None:
    image_done = threading.Event()
    tasks = {
        "pulumi": lambda: _discard(image_done.wait(WAIT_S)),
        "docker": lambda: None,
        "image": image_done.set,
    }
    assert run_concurrently(tasks, {"image": ("docker",)}) == {}
    assert image_done.is_set()


def test_a_dependency_that_was_not_requested_is_ignored() -> None:
    ran: list[str] = []
    assert run_concurrently({"image": lambda: ran.append("image")}, {"image": ("apt", "docker")}) == {}
    assert ran == ["image"]


def test_a_failure_stops_running_tasks_and_starts_no_others() -> None:
    running = threading.Event()
    ran: list[str] = []

    def fail() -> None:
        assert running.wait(WAIT_S)
        raise SetupError("the mirror is down")

    def work_until_stopped() -> None:
        running.set()
        deadline = time.monotonic() + WAIT_S
        while time.monotonic() < deadline:
            raise_if_stopped()
            time.sleep(0.001)

    tasks = {"docker": fail, "pulumi": work_until_stopped, "image": lambda: ran.append("image")}
    errors = run_concurrently(tasks, {"image": ("docker",)})
    assert {name: type(error) for name, error in errors.items()} == {"docker": SetupError, "pulumi": StoppedError}
    assert ran == []


def test_a_dependency_cycle_is_an_error() -> None:
    tasks = {"a": lambda: None, "b": lambda: None}
    with pytest.raises(ValueError, match="these phases wait for each other: a, b"):
        run_concurrently(tasks, {"a": ("b",), "b": ("a",)})


FRESH = frozenset({"go", "ensurepip", "docker", "dockerd", "debootstrap"})


@pytest.mark.parametrize(
    ("facts", "first"),
    [
        # On a fresh Debian, Go and ensurepip come from apt; only the kernel limits do not wait for it.
        (machine(missing=ALL, lacking=FRESH), {"apt", "kernel"}),
        # If Pulumi's release can be downloaded and Python has ensurepip, neither phase waits for apt.
        (
            machine(missing=ALL, lacking=FRESH - {"ensurepip"}, reach={"release": True}),
            {"apt", "venv", "pulumi", "kernel"},
        ),
        (machine(missing=ALL), {"apt", "venv", "pulumi", "kernel"}),
    ],
)
def test_which_phases_start_at_once(facts: Facts, first: set[str]) -> None:
    assert {name for name in NAMES if not dependencies(facts)[name]} == first


@pytest.mark.parametrize("facts", [machine(missing=ALL, lacking=FRESH), machine()])
def test_the_dependency_graph_has_every_phase_and_no_cycle(facts: Facts) -> None:
    graph = dependencies(facts)
    assert set(graph) == set(NAMES)
    order: list[str] = []
    assert run_concurrently({phase.name: partial(order.append, phase.name) for phase in PHASES}, graph) == {}
    assert order.index("docker") < order.index("image") < order.index("env")
    assert order.index("venv") < order.index("env")
    # The download of the environment takes longer than the layer with Slurm, so neither waits for the other.
    assert graph["slurm"] == ("image",)
    assert "slurm" not in graph["env"]


def ticks() -> Callable[[], float]:
    """Return a clock that advances by one second whenever it is read."""
    count = itertools.count()
    return lambda: float(next(count))


def test_the_record_has_the_state_of_every_phase(tmp_path: Path) -> None:
    record = Record(clock=ticks())
    with record.measure("preflight") as result:
        result.state = "done"
    with pytest.raises(SetupError), record.measure("docker"):
        raise SetupError("no")
    with pytest.raises(StoppedError), record.measure("pulumi"):
        raise StoppedError
    record.write(tmp_path / "logs" / "setup.json")
    written = json.loads((tmp_path / "logs" / "setup.json").read_text())
    assert {name: phase["state"] for name, phase in written["phases"].items()} == {
        "preflight": "done",
        "docker": "failed",
        "pulumi": "stopped",
    }
    assert written["phases"]["docker"]["seconds"] == 1
    assert written["seconds"] == 7, "the wall time, not the sum of the phases"
    assert not started_engine(tmp_path / "logs" / "setup.json")


def test_the_summary_lists_phases_and_wall_time() -> None:
    record = Record(clock=ticks())
    for name, state in (("preflight", "done"), ("apt", "cached"), ("venv", "done")):
        record.results.append(PhaseResult(name, state, 2.0))
    assert record.summary().splitlines() == [
        "phase      seconds  state",
        "preflight      2.0  done",
        "apt            2.0  cached",
        "venv           2.0  done",
        "wall time      1.0",
    ]
    record.results[-1].state = "cached"
    assert record.summary() == "setup: everything is up to date (2.0 s)"


def test_started_engine_reads_the_last_record(tmp_path: Path) -> None:
    path = tmp_path / "setup.json"
    assert not started_engine(path)
    path.write_text('{"phases": {"docker": {"state": "done"}}}')
    assert started_engine(path)
    path.write_text('{"phases"')
    assert not started_engine(path)


def _discard(_: object) -> None:
    pass
