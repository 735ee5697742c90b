"""Training that loses a rank or a node recovers, in its job or after a requeue, and reaches the same result."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from tests.e2e.training import (
    CHECKPOINT_STEPS,
    RANKS,
    SLURMD_TIMEOUT_S,
    STRATEGIES,
    Job,
    Undisturbed,
    assert_same_end,
    assert_whole,
    checks,
    completed,
    submit,
)
from tests.fault_matrix.times import record
from tests.harness import Stack

# The bounds of docs/trainer.md (Downtime): Slurm asks nodes in every third of slurmd_timeout_s, and a question may take
# as long as MessageTimeout; then the old credential expires (cred_expire), and the ranks join within JOIN_TIMEOUT_S.
MISSED_WITHIN_S = SLURMD_TIMEOUT_S * 4 / 3 + 30
# Of the test, which looks over SSH, perhaps on a machine with other work.
SLACK_S = 15
START_WITHIN_S = 10 + 300


@dataclass(frozen=True)
class Lost:
    """A run that lost one of its nodes."""

    job: Job
    killed: float
    node: str
    restarts: int
    missed: float = 0.0
    """Time at which Slurm had requeued the job."""
    steps: int = 0
    """Steps that the run had completed when it lost the node."""
    excluded: str = ""
    """Nodes that Slurm did not give to the next attempt; asked for while Slurm still remembers the job."""


def rank_killed(cluster: Stack) -> Job:
    job = submit(cluster, "rank-killed", "ddp")
    node = job.nodes()[1]
    job.wait_for_checkpoint()
    cluster.ssh(node, "pkill -9 -n -f 'python.* -m trainer '", user="root")
    return completed(job)


def node_killed(cluster: Stack, strategy: str) -> Lost:
    # While a checkpoint is written in the background, the run trains on, which would add to the steps that are lost.
    job = submit(cluster, f"node-killed-{strategy}", strategy, "checkpoint.asynchronous=false")
    node = job.nodes()[1]
    job.wait_for_checkpoint()
    with dead(cluster, node) as killed:
        job.wait_for_requeue()
        missed, steps = time.time(), max(job.losses())  # the next attempt removes the records of steps that it repeats
    return Lost(completed(job), killed, node, 1, missed, steps)


def drained_node(cluster: Stack) -> Lost:
    """Kill a rank on a node that has just been drained, in a job that may not restart its ranks."""
    job = submit(cluster, "drained", "ddp", variables="MAX_RESTARTS=0")
    node = job.nodes()[1]
    job.wait_for_checkpoint()
    cluster.ssh("controller", f"scontrol update nodename={node} state=drain reason=test", user="root")
    try:
        killed = time.time()
        cluster.ssh(node, "pkill -9 -n -f 'python.* -m trainer '", user="root")
        job.wait_for_requeue()
        excluded = job.excluded_nodes()
        return Lost(completed(job), killed, node, 1, excluded)
    finally:
        cluster.ssh("controller", f"scontrol update nodename={node} state=resume", user="root")


def fewer_nodes(cluster: Stack) -> Lost:
    variables = "NODES_MIN=1 RANKS_PER_NODE=2"
    job = submit(cluster, "fewer", "fsdp", "steps=1000000", options="--no-kill", variables=variables)
    node = job.nodes()[1]
    job.wait_for_checkpoint()
    with dead(cluster, node) as killed:
        job.wait_for_event("first_step", killed)
        restarts = job.restarts()
        job.stop("enough")
        assert job.wait() == "FAILED", job.log
    return Lost(job, killed, node, restarts)


def replaced_node(cluster: Stack) -> Lost:
    job = submit(cluster, "replaced", "fsdp", options="-N 3 --no-kill", variables="NODES_MAX=2")
    head = job.nodes()[0]
    job.wait_for_checkpoint()
    node = next(host for host in job.events("joined")[0]["hosts"] if host != head)
    with dead(cluster, node) as killed:
        job.wait_for_event("first_step", killed)
        restarts = job.restarts()
        completed(job)
    return Lost(job, killed, node, restarts)


@contextmanager
def dead(cluster: Stack, node: str) -> Iterator[float]:
    """Kill a node and yield the time; restart it afterwards for later runs."""
    cluster.container(node).kill()
    try:
        yield time.time()
    finally:
        cluster.container(node).start()


# By day, torchrun restarts ranks of which one was killed in tests/trainer/test_life_ranks.py.
@pytest.mark.nightly
@checks(rank_killed)
def test_a_killed_rank_restarts_in_its_job_with_the_same_result(result: Job, undisturbed: Undisturbed) -> None:
    assert len(result.events("started")) == 2, result.history
    assert "requeue" not in result.log
    assert_same_end(result, undisturbed("ddp"))


@pytest.mark.fault(1)
@checks(node_killed)
@pytest.mark.parametrize(
    "strategy", ["fsdp", *(pytest.param(name, marks=pytest.mark.nightly) for name in STRATEGIES if name != "fsdp")]
)
def test_a_killed_node_requeues_the_job_with_the_same_result(
    result: Lost, undisturbed: Undisturbed, strategy: str
) -> None:
    (resumed,) = result.job.events("loaded")
    first_step = next(event["time"] for event in result.job.events("first_step") if event["time"] > result.killed)
    assert 0 <= result.steps - resumed["step"] <= CHECKPOINT_STEPS
    assert resumed["step"] > 0
    assert result.missed - result.killed < MISSED_WITHIN_S + SLACK_S
    assert first_step - result.killed < MISSED_WITHIN_S + START_WITHIN_S + SLACK_S
    assert_same_end(result.job, undisturbed(strategy))
    record(1, detect_s=result.missed - result.killed, recover_s=first_step - result.killed)


@pytest.mark.nightly
@checks(drained_node)
def test_the_next_attempt_excludes_a_node_that_was_taken_out_of_service(result: Lost, undisturbed: Undisturbed) -> None:
    assert f"train: the next attempt excludes {result.node}" in result.job.log
    assert result.excluded == result.node
    first, second = result.job.events("joined")
    assert result.node in first["hosts"]
    assert result.node not in second["hosts"]
    assert_same_end(result.job, undisturbed("ddp"))


@pytest.mark.nightly
@checks(fewer_nodes)
def test_an_elastic_run_continues_on_the_remaining_nodes(result: Lost) -> None:
    joined = result.job.events("joined")[-1]
    assert joined["world_size"] == 2
    assert len(joined["hosts"]) == 1
    assert result.node not in joined["hosts"]
    assert result.job.events("loaded")[-1]["written_by"] == 4
    assert result.restarts == 0, result.job.history
    assert_whole(result.job)


@pytest.mark.nightly
@pytest.mark.fault(1)
@checks(replaced_node)
def test_a_spare_node_replaces_a_dead_one(result: Lost, undisturbed: Undisturbed) -> None:
    first, second = result.job.events("joined")
    assert result.node in first["hosts"]
    assert result.node not in second["hosts"]
    assert len(set(second["hosts"]) - set(first["hosts"])) == 1
    assert (first["world_size"], second["world_size"]) == (RANKS["fsdp"], RANKS["fsdp"])
    assert result.restarts == 0, result.job.history
    assert_same_end(result.job, undisturbed("fsdp"))
