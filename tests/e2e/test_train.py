"""Real training on a real cluster: every strategy, and runs interrupted by a time limit, a preemption or a resize."""

from __future__ import annotations

import time
from dataclasses import dataclass

import pytest

from tests.e2e.training import (
    QUICK,
    RANKS,
    SMOKE,
    STEPS,
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


@dataclass(frozen=True)
class Preempted:
    job: Job
    urgent: dict[str, float]
    submitted: float


def time_limit(cluster: Stack) -> Job:
    """Let a job stop 130 s before its 3-minute limit, so that there is time even if processes start slowly."""
    settings = ("steps=1000000", "checkpoint.every=0", "stop.margin_s=130")
    job = submit(cluster, "limit", "hsdp", *settings, options="-t 3")
    job.wait_for_requeue()
    saved = job.events("stopping")[0]
    job.wait_for_event("loaded", saved["time"])
    job.stop("enough")
    assert job.wait() == "FAILED", job.log
    return job


def preempted(cluster: Stack) -> Preempted:
    nodes = "gpu-4,gpu-5"
    job = submit(cluster, "preempted", "fsdp", options=f"-w {nodes}")
    # Not for a checkpoint: it takes Slurm seconds to start the urgent job.
    job.wait_for_first_step()
    submitted = time.time()
    ask = f"sbatch --parsable --wait --qos=urgent -w {nodes} -N 2 --exclusive -o urgent.out --wrap"
    cluster.ssh("login", f"cd ~ && {ask} 'date +began=%s.%N; sleep 3; date +ended=%s.%N'")
    lines = cluster.ssh("login", "cat ~/urgent.out").splitlines()
    urgent = {key: float(value) for key, _, value in (line.partition("=") for line in lines)}
    return Preempted(completed(job), urgent, submitted)


def resized(cluster: Stack) -> tuple[Job, Job]:
    two_each = "RANKS_PER_NODE=2"
    first = submit(cluster, "resized", "fsdp", variables=two_each)
    first.wait_for_checkpoint()
    first.stop("resize")
    assert first.wait() == "FAILED", first.log
    return first, completed(submit(cluster, "resized", "fsdp", options="-N 1", variables=two_each))


def measured(cluster: Stack) -> tuple[str, Job]:
    """Return the log of a job that measures collectives, and a run after it that chooses by the times."""
    program = 'RANKS_PER_NODE=2 SMOKE_PROGRAM="trainer measure-collectives --rounds 2 --mebibytes 0.0625 1"'
    cluster.ssh("login", f"cd ~ && {program} sbatch --wait -N 2 -o measured.out {SMOKE}")
    settings = ("communication.pattern=auto", "checkpoint.every=0", *QUICK)
    return cluster.ssh("login", "cat ~/measured.out"), completed(submit(cluster, "measured", "ddp", *settings))


# By day, `make demo` trains fsdp with two ranks on each node, and the tests of lost nodes compare with a run of fsdp.
@pytest.mark.nightly
@pytest.mark.parametrize("strategy", ["ddp", "fsdp", "hsdp"])
def test_two_nodes_train(undisturbed: Undisturbed, strategy: str) -> None:
    """ddp and hsdp have two ranks on each node."""
    job = undisturbed(strategy)
    losses = job.losses()
    assert list(losses) == list(range(1, STEPS + 1))
    assert losses[STEPS] < 0.7 * losses[1]
    assert len(job.shards(STEPS)) == RANKS[strategy]
    assert f"finished: all {STEPS} steps done" in job.log
    reference = undisturbed("ddp").losses()
    assert max(abs(losses[step] - reference[step]) for step in losses) < 1e-3


@pytest.mark.fault(12)
@pytest.mark.nightly
@checks(time_limit)
def test_a_job_at_its_time_limit_saves_requeues_and_resumes(result: Job) -> None:
    assert "requeue 1 of at most" in result.log
    saved, resumed = result.events("stopping")[0], result.events("loaded")[0]
    assert saved["reason"] == "time limit"
    assert resumed["step"] == saved["step"]
    assert "stopped: enough at step" in result.log
    assert_whole(result)


@pytest.mark.fault(12)
@checks(preempted)
def test_a_preempted_job_resumes_after_the_urgent_one(result: Preempted, undisturbed: Undisturbed) -> None:
    job = result.job
    assert "stopping (preempted)" in job.log
    saved, _ = job.events("stopping")
    (resumed,) = job.events("loaded")
    assert len(job.events("job_started")) == 2
    assert saved["reason"] == "preempted"
    assert 0 < saved["step"] == resumed["step"] < STEPS
    assert saved["time"] < result.urgent["began"] < result.urgent["ended"] < resumed["time"]
    for rank in range(RANKS["fsdp"]):
        assert list(job.losses(rank)) == list(range(1, STEPS + 1))
    assert_same_end(job, undisturbed("fsdp"))
    record(12, detect_s=saved["time"] - result.submitted, recover_s=resumed["time"] - result.urgent["ended"])


@pytest.mark.nightly
@checks(resized)
def test_a_run_of_four_ranks_resumes_on_two(result: tuple[Job, Job], undisturbed: Undisturbed) -> None:
    first, second = result
    assert "stopped: resize at step" in first.log
    assert "written by 4 ranks" in second.log
    assert len(second.shards(STEPS)) == 2
    losses, reference = second.losses(), undisturbed("fsdp").losses()
    assert max(abs(losses[step] - reference[step]) for step in reference) < 1e-3


@pytest.mark.nightly
@checks(measured)
def test_times_that_a_job_has_measured_decide_in_a_later_run(result: tuple[str, Job], undisturbed: Undisturbed) -> None:
    log, job = result
    assert "2x2 ranks: " in log
    assert "written to /shared/home/muster/.cache/muster/collectives/" in log
    assert "communication.pattern: auto, by the times measured on 2x2 ranks: " in job.log
    losses, reference = job.losses(), undisturbed("ddp").losses()
    assert max(abs(losses[step] - reference[step]) for step in reference) < 1e-3
