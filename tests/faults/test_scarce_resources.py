"""Training jobs of which a rank gets too little: of the processor, or of its job's memory."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median

import pytest

from tests.e2e.training import QUICK, Job, assert_whole, submit
from tests.fault_matrix.times import record
from tests.faults.test_training_faults import ENDLESS, RANK, SITE, faulty_start, stop
from tests.harness import Stack, wait_until

pytestmark = pytest.mark.nightly

# Waiting is known from profiles: until the next one and the one that confirms it four steps later, then three windows
# of ten steps after the one that has begun, and the steps until the test looks.
PROFILE_STEPS = 20
REPORTED_WITHIN_STEPS = PROFILE_STEPS + 4 + 10 + 30 + 10
# The rank runs for a fifth of the time.
SLOW = """touch {flag}; while [ -e {flag} ] && kill -STOP {rank}; do sleep 0.08; kill -CONT {rank}; sleep 0.02; done"""
FLAG = "/run/slow-rank"
MEMORY = "1500M"
# The second rank uses up the memory of the job once it trains.
EATING_START = """import os, sys, threading, time

def eat():
    while not os.path.exists(os.environ["run"] + "/progress.json"):
        time.sleep(0.1)
    pieces = []
    while True:
        pieces.append(b"x" * (32 << 20))
        time.sleep(0.02)

if os.environ.get("RANK") == "1" and "trainer" in sys.orig_argv:
    threading.Thread(target=eat, daemon=True).start()
"""


@pytest.mark.fault(32)
def test_a_slow_rank_is_named_and_nothing_is_killed(healthy: Stack) -> None:
    job = submit(
        healthy, "slow-rank", "fsdp", ENDLESS, "metrics.peak_tflops=1", f"metrics.profile_every={PROFILE_STEPS}"
    )
    job.wait_for_checkpoint()
    (joined,) = job.events("joined")
    node = joined["hosts"][1]
    pid = healthy.ssh(node, RANK, user="root")
    usual = median(list_step_times(job)[-10:])
    before, began = max(job.losses()), time.time()
    with slowed(healthy, node, pid):
        straggler = job.wait_for_event("straggler", began)
        during = max(job.losses())
        slow = median(list_step_times(job)[-10:])
        assert healthy.ssh(node, RANK, user="root") == pid
        assert healthy.ssh("controller", f"sinfo -h -n {node} -o %T") in ("allocated", "mixed")
    healed = time.time()
    wait_until(lambda: median(list_step_times(job)[-5:]) < (usual + slow) / 2, "the usual speed")
    recover_s = time.time() - healed
    assert job.restarts() == 0
    # Its messages are late too, and the link is not to blame.
    assert job.events("slow_link") == []
    stop(job)
    assert (straggler["rank"], straggler["host"]) == (1, node)
    ratio = re.search(r"([\d.]+) times the median", straggler["message"])
    assert ratio is not None
    assert float(ratio[1]) > 1.3
    assert during - before <= REPORTED_WITHIN_STEPS
    assert f"STRAGGLER rank 1 on {node} works " in job.log
    assert len(job.events("started")) == 1
    assert_whole(job)
    record(32, detect_s=straggler["time"] - began, recover_s=recover_s)


@pytest.mark.fault(33)
def test_a_rank_without_memory_is_named_and_other_jobs_are_unharmed(healthy: Stack) -> None:
    other = submit(healthy, "unharmed", "ddp", ENDLESS, *QUICK, options="-N 1 -w gpu-1")
    other.wait_for_first_step()
    with faulty_start(healthy, EATING_START):
        variables = f"MAX_RESTARTS=0 MAX_STALLED_REQUEUES=1 PYTHONPATH={SITE}"
        settings = (ENDLESS, *QUICK, "checkpoint.every=0")
        job = submit(healthy, "hungry", "ddp", *settings, options=f"-N 1 -w gpu-2 --mem={MEMORY}", variables=variables)
        assert job.wait() == "FAILED", job.log
    history = healthy.ssh("controller", f"sacct -D -n -P -o State -j {job.number}")
    assert other.restarts() == 0
    stop(other)
    assert len(other.events("started")) == 1
    assert_whole(other)
    kill = r"rank 1 on gpu-2: host memory: killed by the kernel with [\d.]+ GiB in use: all processes of the job on "
    kill += r"this node may use 1.46 GiB, of which 1.4\d GiB were used at once; use fewer data.workers"
    end = r" at step \d+; not requeued: no newer checkpoint than none in 1 requeues \(MAX_STALLED_REQUEUES=1\)"
    assert re.search(rf"train: BROKEN: {kill}.*{end}", job.log), job.log
    assert job.log.count("train: job ") == 2, job.history
    failure = json.loads(job.read("outcome.json"))["failure"]
    assert (failure["cause"], failure["rank"], failure["host"]) == ("host_memory", 1, "gpu-2")
    assert "OUT_OF_MEMORY" in history


@contextmanager
def slowed(stack: Stack, node: str, pid: str) -> Iterator[None]:
    """Let a process run for a fifth of the time until the end of the block."""
    stack.container(node).exec_run(["bash", "-c", SLOW.format(rank=pid, flag=FLAG)], detach=True)
    try:
        yield
    finally:
        stack.ssh(node, f"rm -f {FLAG}; sleep 0.5; kill -CONT {pid} || true", user="root")


def list_step_times(job: Job) -> list[float]:
    """Return the seconds of each step of the first rank."""
    return [json.loads(line)["step_s"] for line in job.read("metrics/rank-00000.jsonl").splitlines()]
