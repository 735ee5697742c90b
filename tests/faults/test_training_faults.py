"""Training jobs with a rank that hangs or always dies, a loss of NaN, a full disk, or a folder that is in use."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime

import pytest

from tests.e2e.training import QUICK, Job, assert_whole, submit
from tests.fault_matrix.times import record
from tests.harness import Stack, wait_until

pytestmark = pytest.mark.nightly

ENDLESS = "steps=1000000"
HANG_S = 10
# Python imports it at its start, in the ranks too: a signal makes a rank stand still, and DIE kills it after 4 s.
FAULTY_START = """import os, signal, threading, time

def stand_still(*_):
    time.sleep(600)

signal.signal(signal.SIGPROF, stand_still)
if os.environ.get("DIE") and "RANK" in os.environ:
    threading.Timer(4, os.kill, (os.getpid(), signal.SIGKILL)).start()
"""
SITE = "/shared/home/muster/faulty"
RANK = "pgrep -n -f 'python.* -m trainer '"
SMALL_DISK_MB = 64


@pytest.mark.fault(11)
def test_a_second_job_in_the_same_folder_is_refused_with_the_owner(healthy: Stack) -> None:
    first = submit(healthy, "in-use", "ddp", ENDLESS, *QUICK, options="-N 1")
    first.wait_for_first_step()
    second = submit(healthy, "in-use", "ddp", *QUICK, options="-N 1")
    assert second.wait() == "FAILED", second.log
    stop(first)
    assert f"job {first.number} is training in {first.folder}: wait for it, or set another RUN_FOLDER" in second.log
    assert len(first.events("started")) == 1
    assert_whole(first)
    # From its start: it may have waited in the queue before. Slurm counts whole seconds, so this is a bound.
    record(11, detect_s=float(healthy.ssh("controller", f"sacct -X -n -P -o ElapsedRaw -j {second.number}")) + 1)


@pytest.mark.fault(30)
def test_a_run_whose_loss_is_not_a_number_ends_and_is_not_requeued(healthy: Stack) -> None:
    settings = ("optimizer.lr=1e30", "schedule.kind=constant", "health.max_skips=3")
    job = submit(healthy, "nan", "ddp", *QUICK, *settings, options="-N 1")
    assert job.wait() == "FAILED", job.log
    assert "4 updates in a row (health.max_skips=3): lower optimizer.lr" in job.log
    assert len(job.events("unhealthy")) == 4
    assert len(job.events("job_started")) == 1
    (ended,) = job.events("ended")
    assert ended["outcome"] == "broken"
    # The update of the first step makes the weights useless.
    (broken,) = job.events("first_step")
    record(30, detect_s=ended["time"] - broken["time"])


@pytest.mark.fault(14)
def test_a_job_that_always_fails_is_not_requeued_forever(healthy: Stack) -> None:
    with faulty_start(healthy):
        variables = f"MAX_RESTARTS=0 MAX_STALLED_REQUEUES=1 DIE=1 PYTHONPATH={SITE}"
        job = submit(healthy, "dying", "ddp", ENDLESS, options="-N 1", variables=variables)
        assert job.wait() == "FAILED", job.log
    assert job.log.count("train: job ") == 2, job.history
    expected = (
        r"train: BROKEN: .*; not requeued: no newer checkpoint than none in 1 requeues \(MAX_STALLED_REQUEUES=1\)"
    )
    assert re.search(expected, job.log), job.log
    # With -D, sacct lists every attempt; the first one is the fault.
    ends = healthy.ssh("controller", f"sacct -D -X -n -P -o End -j {job.number}").split()
    first, last = sorted(map(datetime.fromisoformat, ends))
    record(14, detect_s=(last - first).total_seconds())


@pytest.mark.fault(31)
def test_a_hung_rank_is_named_with_its_stack_and_the_job_is_requeued(healthy: Stack) -> None:
    with faulty_start(healthy):
        variables = f"MAX_RESTARTS=0 PYTHONPATH={SITE}"
        settings = (ENDLESS, *QUICK, f"watchdog.hang_s={HANG_S}")
        job = submit(healthy, "hung", "fsdp", *settings, variables=variables)
        node = job.nodes()[1]
        job.wait_for_checkpoint()
        healthy.ssh(node, f"kill -PROF $({RANK})", user="root")
        hung = time.time()
        job.wait_for(f"[ -s {job.folder}/hang/report.txt ] && [ -s {job.folder}/hang/rank-00001.txt ]", "stacks")
        detect_s = time.time() - hung
        stack, report = job.read("hang/rank-00001.txt"), job.read("hang/report.txt")
        job.wait_for_requeue()
        recovered = job.wait_for_event("first_step", hung)
        stop(job)
    assert f"rank 1 on {node} " in report, report
    assert "in stand_still" in stack
    assert detect_s < HANG_S + 10
    assert job.events("loaded")[-1]["step"] > 0
    assert_whole(job)
    record(31, detect_s=detect_s, recover_s=recovered["time"] - hung)


@pytest.mark.fault(7)
def test_a_full_disk_costs_a_checkpoint_and_not_the_run(healthy: Stack) -> None:
    """The folder of the run is a small disk of the only node of the job."""
    node, folder = "gpu-1", "/shared/home/muster/runs/full"
    mount = f"mkdir -p {folder} && mount -t tmpfs -o size={SMALL_DISK_MB}m,uid=2000,mode=755 tmpfs {folder}"
    healthy.ssh(node, mount, user="root")
    try:
        job = submit(healthy, "full", "ddp", ENDLESS, *QUICK, "checkpoint.every=200", options=f"-N 1 -w {node}")
        wait_until(lambda: bool(list_checkpoints(healthy, node, folder)), "a checkpoint", 300)
        healthy.ssh(node, f"dd if=/dev/zero of={folder}/fill bs=1M 2>/dev/null; true", user="root")
        filled = time.monotonic()
        job.wait_for(f"grep -q 'No space left on device' ~/train-{job.number}.out", "report of the failed save")
        detect_s = time.monotonic() - filled
        during = list_checkpoints(healthy, node, folder)
        healthy.ssh(node, f"rm {folder}/fill", user="root")
        emptied = time.monotonic()
        wait_until(lambda: list_checkpoints(healthy, node, folder)[-1:] > during[-1:], "a later checkpoint")
        recover_s = time.monotonic() - emptied
        healthy.ssh(node, f"echo enough >{folder}/stop", user="root")
        assert job.wait() == "FAILED", job.log
    finally:
        healthy.ssh(node, f"umount --lazy {folder}", user="root")
    assert during, "the checkpoints from before are complete"
    assert "stopped: enough at step" in job.log
    assert "requeue" not in job.log
    record(7, detect_s=detect_s, recover_s=recover_s)


@contextmanager
def faulty_start(stack: Stack, code: str = FAULTY_START) -> Iterator[None]:
    """Let Python run this code at its start, in jobs that have SITE in their PYTHONPATH."""
    stack.ssh(stack.entry, f"mkdir -p {SITE} && cat >{SITE}/sitecustomize.py <<'END'\n{code}END")
    try:
        yield
    finally:
        stack.ssh(stack.entry, f"rm -r {SITE}")


def stop(job: Job) -> None:
    job.stop("enough")
    assert job.wait() == "FAILED", job.log
    assert "stopped: enough at step" in job.log


def list_checkpoints(stack: Stack, node: str, folder: str) -> list[str]:
    """Return the checkpoints on a node that have a manifest, which is written last."""
    listed = stack.ssh(node, f"ls {folder}/checkpoints/step-*/manifest.json 2>/dev/null || true", user="root")
    return sorted(line.split("/")[-2] for line in listed.splitlines())
