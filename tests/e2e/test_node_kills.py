"""Nodes of a training job are killed again and again, its first one too: the losses stay those of a quiet run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from random import Random
from statistics import median

import pytest

from tests.e2e.training import QUICK, SLURMD_TIMEOUT_S, Job, assert_whole, submit
from tests.fault_matrix.times import record
from tests.harness import Spec, Stack, small_spec, wait_until

KILLS = 20
SEED = 16
# Two for the job, and one that replaces a dead one.
NODES = 3
# Every other kill comes while an attempt starts, the others while it trains. Then, the longest wait is from before the
# first checkpoint of an attempt until after several.
MOMENTS = ("first_step", "job_started")
LONGEST_WAIT_S = 8.0
RECOVERY_WITHIN_S, UNDISTURBED_WITHIN_S = 420.0, 900.0
# Some attempts are killed before they save; by default, a job gives up after three such requeues.
SURVIVE = "MAX_STALLED_REQUEUES=100 MAX_REQUEUES=1000"
ENDLESS = ("steps=1000000", *QUICK)


@pytest.fixture
def three_nodes(make_stack: Callable[[str, Spec], Stack]) -> Iterator[Stack]:
    spec = small_spec(login={"enabled": False}, slurm={"slurmd_timeout_s": SLURMD_TIMEOUT_S})
    spec["groups"]["gpu"]["count"] = NODES
    stack = make_stack("kills", spec)
    stack.up()
    yield stack
    stack.muster("teardown", "--yes", "--force")
    assert stack.exists() == []


@pytest.mark.nightly
@pytest.mark.fault(1)
@pytest.mark.timeout(3600)
def test_a_run_that_survives_twenty_node_kills_has_the_losses_of_an_undisturbed_run(three_nodes: Stack) -> None:
    """The nodes start again at once, so that they are back before slurmctld misses them."""
    job = submit(three_nodes, "killed", "fsdp", *ENDLESS, variables=SURVIVE)
    kills, requeues = kill_nodes(three_nodes, job, Random(SEED))
    job.wait_for_event("save_published", kills[-1], RECOVERY_WITHIN_S)
    losses = end(job)
    starts = [event["time"] for event in job.events("first_step")]
    assert len(job.events("job_started")) > KILLS
    assert_whole(job)
    undisturbed = submit(three_nodes, "undisturbed", "fsdp", *ENDLESS)
    undisturbed.wait_for_first_step()
    wait_until(lambda: len(undisturbed.losses()) >= len(losses), "as many steps without kills", UNDISTURBED_WITHIN_S)
    expected = end(undisturbed)
    assert losses == {step: expected[step] for step in losses}
    record(
        1,
        detect_s=median(requeue - kill for kill, requeue in zip(kills, requeues, strict=True)),
        recover_s=median(next(start for start in starts if start > kill) - kill for kill in kills[1 :: len(MOMENTS)]),
    )


def kill_nodes(cluster: Stack, job: Job, random: Random) -> tuple[list[float], list[float]]:
    """Kill a node of the job at a random moment after each start, and start it again at once.

    Return the times of the kills, and those at which Slurm had requeued the job.
    """
    kills: list[float] = [0.0]
    requeues = []
    for number in range(1, KILLS + 1):
        moment = MOMENTS[(number - 1) % len(MOMENTS)]
        job.wait_for_event(moment, kills[-1], RECOVERY_WITHIN_S)
        time.sleep(random.uniform(0, LONGEST_WAIT_S))
        nodes = job.nodes()
        place = random.randrange(len(nodes))
        restarts = job.restarts()
        container = cluster.container(nodes[place])
        container.kill()
        kills.append(time.time())
        container.start()
        condition = f"(( $(scontrol show job {job.number} | sed -n 's/.*Restarts=\\([0-9]*\\).*/\\1/p') > {restarts} ))"
        job.wait_for(condition, f"requeue {number}", RECOVERY_WITHIN_S)
        requeues.append(time.time())
        print(
            f"{time.strftime('%T')} kill {number}: {nodes[place]} (node {place} of the job) after {moment}, "
            f"requeued after {requeues[-1] - kills[-1]:.1f} s, {len(job.losses())} steps so far"
        )
    return kills[1:], requeues


def end(job: Job) -> dict[int, float]:
    """Stop the run and return its losses."""
    job.stop("enough")
    assert job.wait() == "FAILED", job.log
    assert job.events("ended")[-1]["outcome"] == "stopped", job.log
    return job.losses()
