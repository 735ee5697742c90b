"""Training that goes on inside its job with the nodes that are left."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from tests.e2e.training import submit
from tests.harness import Spec, Stack, small_spec

MakeStack = Callable[[str, Spec], Stack]
SETTINGS = ("parallel.strategy=fsdp", "steps=1000000")


@pytest.fixture(scope="module")
def cluster(make_stack: MakeStack) -> Iterator[Stack]:
    stack = make_stack("elastic", small_spec(slurm={"slurmd_timeout_s": 10}))
    stack.up()
    yield stack
    stack.muster("teardown", "--yes", "--force")
    assert stack.exists() == []


def test_an_elastic_run_goes_on_with_the_nodes_that_are_left(cluster: Stack) -> None:
    job = submit(cluster, "elastic", *SETTINGS, options="--no-kill", variables="NODES_MIN=1")
    job.wait_for_checkpoint(10)
    cluster.container("gpu-2").kill()
    killed = time.time()
    joined = job.wait_for_event("joined", killed, 150)
    assert (joined["world_size"], joined["hosts"]) == (2, ["gpu-1"])
    loaded = job.wait_for_event("loaded", killed)
    assert loaded["written_by"] == 4
    job.wait_for_event("first_step", killed)
    assert job.restarts() == 0
    cluster.ssh("login", f"echo enough > {job.folder}/stop")
    job.wait()
    steps = list(job.losses())
    assert steps == list(range(1, len(steps) + 1))
