"""Real training on a real cluster: every strategy, a lost rank, a lost node, the time limit, fewer ranks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from tests.e2e.training import Job, submit
from tests.harness import Spec, Stack, small_spec, wait_until

MakeStack = Callable[[str, Spec], Stack]
STEPS = 80
STRATEGIES = {
    "ddp": ("parallel.strategy=ddp",),
    "fsdp": ("parallel.strategy=fsdp",),
    "hsdp": ("parallel.strategy=hsdp", "parallel.shard=2"),
}


@pytest.fixture(scope="module")
def cluster(make_stack: MakeStack) -> Iterator[Stack]:
    """One of its own: nodes die here."""
    stack = make_stack("train", small_spec(slurm={"slurmd_timeout_s": 10}))
    stack.up()
    yield stack
    stack.muster("teardown", "--yes", "--force")
    assert stack.exists() == []


@pytest.fixture(scope="module")
def undisturbed(cluster: Stack) -> dict[str, Job]:
    jobs = {}
    for strategy, settings in STRATEGIES.items():
        job = submit(cluster, strategy, *settings, f"steps={STEPS}")
        assert job.wait() == "COMPLETED", job.log
        jobs[strategy] = job
    return jobs


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_two_nodes_with_two_ranks_each_train(undisturbed: dict[str, Job], strategy: str) -> None:
    job = undisturbed[strategy]
    losses = job.losses()
    assert list(losses) == list(range(1, STEPS + 1))
    assert losses[STEPS] < 0.7 * losses[1]
    assert len(job.shards(STEPS)) == 4
    assert f"finished: all {STEPS} steps done" in job.log
    reference = undisturbed["ddp"].losses()
    assert max(abs(losses[step] - reference[step]) for step in losses) < 1e-3


def test_a_killed_rank_restarts_in_the_job_to_the_same_end(cluster: Stack, undisturbed: dict[str, Job]) -> None:
    job = submit(cluster, "rank-killed", *STRATEGIES["ddp"], f"steps={STEPS}")
    job.wait_for_checkpoint(10)
    cluster.ssh("gpu-2", "pkill -9 -n -f 'python.* -m trainer '", user="root")
    assert job.wait() == "COMPLETED", job.log
    assert len([event for event in job.events() if event["event"] == "started"]) == 2
    assert "requeue" not in job.log
    assert_same_end(job, undisturbed["ddp"])


def test_a_killed_node_leads_to_a_requeue_and_the_same_end(cluster: Stack, undisturbed: dict[str, Job]) -> None:
    job = submit(cluster, "node-killed", *STRATEGIES["fsdp"], f"steps={STEPS}")
    job.wait_for_checkpoint(10)
    cluster.container("gpu-2").kill()
    killed = time.time()
    wait_until(lambda: job.restarts() == 1, f"requeue of job {job.number}\n{job.log}", 120)
    cluster.container("gpu-2").start()
    resumed = job.wait_for_event("loaded", killed)
    assert resumed["step"] >= 10
    assert job.wait() == "COMPLETED", job.log
    assert_same_end(job, undisturbed["fsdp"])


def test_the_time_limit_leads_to_a_save_a_requeue_and_on(cluster: Stack) -> None:
    job = submit(cluster, "limit", *STRATEGIES["hsdp"], "steps=100000", "checkpoint.every=0", options="-t 1")
    wait_until(lambda: job.restarts() == 1, f"requeue of job {job.number}\n{job.log}", 120)
    assert "requeue 1 of at most" in job.log
    saved = [event for event in job.events() if event["event"] == "stopping"][-1]
    assert saved["reason"] == "time limit"
    resumed = job.wait_for_event("loaded", saved["time"])
    assert resumed["step"] == saved["step"]
    cluster.ssh("login", f"echo enough > {job.folder}/stop")
    assert job.wait().startswith("FAILED")
    assert "stopped: enough at step" in job.log
    steps = list(job.losses())
    assert steps == list(range(1, len(steps) + 1))


def test_four_ranks_go_on_as_two(cluster: Stack, undisturbed: dict[str, Job]) -> None:
    first = submit(cluster, "resized", *STRATEGIES["fsdp"], f"steps={STEPS}")
    first.wait_for_checkpoint(10)
    cluster.ssh("login", f"echo resize > {first.folder}/stop")
    first.wait()
    second = submit(cluster, "resized", *STRATEGIES["fsdp"], f"steps={STEPS}", options="-N 1")
    assert second.wait() == "COMPLETED", second.log
    assert "written by 4 ranks" in second.log
    assert len(second.shards(STEPS)) == 2
    losses, reference = second.losses(), undisturbed["fsdp"].losses()
    assert max(abs(losses[step] - reference[step]) for step in reference) < 1e-3


def assert_same_end(job: Job, undisturbed: Job) -> None:
    assert job.losses() == undisturbed.losses()
    assert job.shards(STEPS) == undisturbed.shards(STEPS)
