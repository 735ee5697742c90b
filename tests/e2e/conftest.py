"""Real clusters: one for tests that only look, one to train on, where jobs run side by side and nodes die."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from tests.e2e.training import STRATEGIES, Job, Undisturbed, completed, submit
from tests.harness import Spec, Stack, small_spec

MakeStack = Callable[[str, Spec], Stack]
# Most of a story is waiting: for the queue, for a timeout, for processes to start.
AT_ONCE = 3
PREEMPTION = {"PreemptType": "preempt/qos", "PreemptMode": "REQUEUE"}
URGENT = """sacctmgr -i modify qos normal set gracetime=120
    sacctmgr -i add qos urgent preempt=normal
    sacctmgr -i modify user muster set qos+=urgent"""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "/e2e/" in item.path.as_posix():
            item.add_marker(pytest.mark.e2e)


@pytest.fixture(scope="session")
def cluster(make_stack: MakeStack) -> Iterator[Stack]:
    """Two groups: what is said of every group must hold for more than one. Three nodes tell which of them is slow."""
    spec = small_spec()
    spec["groups"]["cpu"] = {"count": 3, "size": {"cpus": 1, "memory_mb": 1024}}
    spec["users"] = {"alice": {"uid": 2001}, "bob": {"uid": 2002, "admin": True}}
    spec["slurm"] = {"default_group": "gpu"}
    stack = make_stack("e2e", spec)
    stack.up()
    yield stack
    stack.muster("teardown", "--yes", "--force")
    assert stack.exists() == []


@pytest.fixture(scope="session")
def training_cluster(make_stack: MakeStack) -> Iterator[Stack]:
    """Nodes for three jobs, one of them with a node in reserve; lost nodes are noticed soon, urgent jobs preempt."""
    spec = small_spec(slurm={"slurmd_timeout_s": 10, "extra": PREEMPTION})
    spec["groups"]["gpu"]["count"] = 2 * AT_ONCE + 1
    stack = make_stack("train", spec)
    stack.up()
    stack.ssh("controller", URGENT, user="root")
    yield stack
    stack.muster("teardown", "--yes", "--force")
    assert stack.exists() == []


@pytest.fixture(scope="session", autouse=True)
def begun_early(request: pytest.FixtureRequest) -> None:
    """Training goes on beside the tests that come before; a story that nobody asked for is not told."""
    if any(stories(request.session)):
        request.getfixturevalue("runs")


@pytest.fixture(scope="session")
def runs(training_cluster: Stack, request: pytest.FixtureRequest) -> Iterator[dict[str, Future[Any]]]:
    """By strategy the undisturbed runs, by test the story it is about; some at once, while tests wait for theirs."""
    pool = ThreadPoolExecutor(AT_ONCE)
    begun = {strategy: pool.submit(straight, training_cluster, strategy) for strategy in STRATEGIES}
    for test, story, parameters in stories(request.session):
        begun[test] = pool.submit(story, training_cluster, **parameters)
    yield begun
    pool.shutdown(cancel_futures=True)


def stories(session: pytest.Session) -> Iterator[tuple[str, Callable[..., Any], dict[str, Any]]]:
    for item in session.items:
        if isinstance(item, pytest.Function) and hasattr(item.function, "story"):
            yield item.nodeid, item.function.story, item.callspec.params if hasattr(item, "callspec") else {}


def straight(cluster: Stack, strategy: str) -> Job:
    return completed(submit(cluster, strategy, *STRATEGIES[strategy]))


@pytest.fixture(scope="session")
def undisturbed(runs: dict[str, Future[Any]]) -> Undisturbed:
    return lambda strategy: runs[strategy].result()


@pytest.fixture
def told(runs: dict[str, Future[Any]], request: pytest.FixtureRequest) -> Any:
    return runs[request.node.nodeid].result()
