"""Real clusters: one for tests that only look, and one to train on, where jobs run side by side and nodes die."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from tests.e2e.training import QUICK, SLURMD_TIMEOUT_S, STRATEGIES, Job, Undisturbed, completed, submit
from tests.harness import Spec, Stack, small_spec

MakeStack = Callable[[str, Spec], Stack]
# Scenarios that run at once: most of the time a scenario waits for the queue, a timeout or starting processes.
AT_ONCE = 2
# Two nodes for a job, two and a spare for the one that loses a node.
TRAINING_NODES = 5
PREEMPTION = {"PreemptType": "preempt/qos", "PreemptMode": "REQUEUE"}
URGENT = """sacctmgr -i modify qos normal set gracetime=120
    sacctmgr -i add qos urgent preempt=normal
    sacctmgr -i modify user muster set qos+=urgent"""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of this folder."""
    for item in items:
        if "/e2e/" in item.path.as_posix():
            item.add_marker(pytest.mark.e2e)


@pytest.fixture(scope="session")
def cluster(make_stack: MakeStack) -> Iterator[Stack]:
    """Return a cluster with two groups; it takes three nodes in one of them to find out which node is slow."""
    spec = small_spec()
    spec["groups"]["cpu"] = {"count": 3, "size": {"cpus": 1, "memory_mb": 1024}}
    spec["users"] = {"alice": {"uid": 2001}, "bob": {"uid": 2002, "admin": True}, "carol": {"uid": 2003}}
    spec["slurm"] = {"default_group": "gpu"}
    stack = make_stack("e2e", spec)
    stack.up()
    yield stack
    stack.muster("teardown", "--yes", "--force")
    assert stack.exists() == []


@pytest.fixture(scope="session")
def training_cluster(make_stack: MakeStack) -> Iterator[Stack]:
    """Return a cluster for several jobs and a spare node; lost nodes are noticed soon, and urgent jobs preempt."""
    spec = small_spec(slurm={"slurmd_timeout_s": SLURMD_TIMEOUT_S, "extra": PREEMPTION})
    spec["groups"]["gpu"]["count"] = TRAINING_NODES
    stack = make_stack("train", spec)
    stack.up()
    stack.ssh("controller", URGENT, user="root")
    yield stack
    stack.muster("teardown", "--yes", "--force")
    assert stack.exists() == []


@pytest.fixture(scope="session", autouse=True)
def start_training_early(request: pytest.FixtureRequest) -> None:
    """Start the training runs first, so that they run next to the other tests; only for tests that were selected."""
    if any(scenarios(request.session)):
        request.getfixturevalue("runs")


@pytest.fixture(scope="session")
def runs(training_cluster: Stack, request: pytest.FixtureRequest) -> Iterator[dict[str, Future[Any]]]:
    """Start the undisturbed run of each strategy and the scenario of each test, `AT_ONCE` at a time."""
    pool = ThreadPoolExecutor(AT_ONCE)
    running = {name: pool.submit(run_undisturbed, training_cluster, name) for name in strategies(request.session)}
    for test, scenario, parameters in scenarios(request.session):
        running[test] = pool.submit(scenario, training_cluster, **parameters)
    yield running
    # Nothing waits for a scenario that no test asked for: after an interrupt it fails as soon as its cluster is gone.
    pool.shutdown(wait=False, cancel_futures=True)


def scenarios(session: pytest.Session) -> Iterator[tuple[str, Callable[..., Any], dict[str, Any]]]:
    for item in session.items:
        if isinstance(item, pytest.Function) and hasattr(item.function, "scenario"):
            yield item.nodeid, item.function.scenario, item.callspec.params if hasattr(item, "callspec") else {}


def strategies(session: pytest.Session) -> list[str]:
    """Return the strategies of the selected tests, and the one that most runs are compared with."""
    parameters = [item.callspec.params for item in session.items if hasattr(item, "callspec")]
    selected = {"fsdp", *(values.get("strategy") for values in parameters)}
    return [name for name in STRATEGIES if name in selected]


def run_undisturbed(cluster: Stack, strategy: str) -> Job:
    return completed(submit(cluster, strategy, strategy, *QUICK))


@pytest.fixture(scope="session")
def undisturbed(runs: dict[str, Future[Any]], training_cluster: Stack) -> Undisturbed:
    """Return a function that waits for the undisturbed run of a strategy, or starts it if nothing has."""
    trained: dict[str, Job] = {}

    def train(strategy: str) -> Job:
        if strategy not in trained:
            run = runs.get(strategy)
            trained[strategy] = run.result() if run else run_undisturbed(training_cluster, strategy)
        return trained[strategy]

    return train


@pytest.fixture
def result(runs: dict[str, Future[Any]], request: pytest.FixtureRequest) -> Any:
    """Return the result of the test's scenario."""
    return runs[request.node.nodeid].result()
