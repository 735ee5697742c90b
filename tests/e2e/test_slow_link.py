"""A link becomes slow, or loses packets, while a job trains: the run names rank and node."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from tests.e2e.training import Job, assert_whole, submit
from tests.fault_matrix.times import record
from tests.harness import Spec, Stack, small_spec

pytestmark = pytest.mark.nightly

# On the way out of the node: every message to and from it waits for its packets or acknowledgements.
SLOW = "tc qdisc add dev eth0 root tbf rate 20mbit burst 64kb latency 400ms"
HEAL_SLOW = "tc qdisc del dev eth0 root"
# Of what arrives, as with a damaged cable: the senders send it again.
LOSSY = """nft add table inet lossy
    nft add chain inet lossy in '{ type filter hook input priority 0; }'
    nft add rule inet lossy in iif eth0 numgen random mod 10 == 0 drop"""
HEAL_LOSSY = "nft delete table inet lossy"
# Three windows of ten steps after the one that has begun, two more for the measurements, and the test's own look.
REPORTED_WITHIN_STEPS = 10 + 30 + 20 + 10
REFERENCE_STEPS = 60


@pytest.fixture(scope="module")
def cluster(make_stack: Callable[[str, Spec], Stack]) -> Iterator[Stack]:
    """Return a cluster of three nodes, the least of which one can be told apart; it has the network for itself."""
    spec = small_spec(login={"enabled": False})
    spec["groups"]["gpu"]["count"] = 3
    stack = make_stack("link", spec)
    stack.up()
    yield stack
    stack.muster("teardown", "--yes", "--force")
    assert stack.exists() == []


@pytest.mark.fault(6)
def test_a_slow_link_is_named_while_a_job_trains(cluster: Stack) -> None:
    message, detect_s = cause(cluster, "slow-link", SLOW, HEAL_SLOW)
    assert "rank 2 on " in message
    record(6, detect_s=detect_s)


@pytest.mark.fault(6)
def test_a_link_that_loses_packets_is_named_while_a_job_trains(cluster: Stack) -> None:
    message, detect_s = cause(cluster, "lossy-link", LOSSY, HEAL_LOSSY)
    assert "of the packets were lost and sent again, also to its best partner" in message
    record(6, detect_s=detect_s)


def cause(cluster: Stack, name: str, fault: str, heal: str) -> tuple[str, float]:
    """Let a node of a training job have a bad link; return what the run reports, and after how many seconds."""
    settings = ("steps=1000000", "batch.size=6", "checkpoint.every=100", "metrics.peak_tflops=1")
    job = submit(cluster, name, "fsdp", *settings, options="-N 3")
    job.wait_for(f"[ $(wc -l <{job.folder}/metrics/rank-00000.jsonl) -ge {REFERENCE_STEPS} ]", "the usual pace")
    (joined,) = job.events("joined")
    node = joined["hosts"][2]
    assert job.events("slow_link") == []
    before, began = max(job.losses()), time.time()
    cluster.ssh(node, fault, user="root")
    try:
        slow = job.wait_for_event("slow_link", began)
        during = max(job.losses())
    finally:
        cluster.ssh(node, heal, user="root")
    assert job.restarts() == 0
    stop(job)
    assert (slow["ranks"], slow["hosts"]) == ([2], [node])
    assert during - before <= REPORTED_WITHIN_STEPS
    assert f"SLOW LINK rank 2 on {node}: " in job.log
    assert len(job.events("slow_link")) == 1
    assert_whole(job)
    message: str = slow["message"]
    return message, slow["time"] - began


def stop(job: Job) -> None:
    job.stop("enough")
    assert job.wait() == "FAILED", job.log
