"""The fence: jobs of a node that is cut off are stopped in time, and only if the node itself is unreachable."""

from __future__ import annotations

import pytest

from slurm.health.fence import Cluster, Verdict, decide, parse_cluster

CONF = """\
SlurmctldHost=controller(10.0.0.2)
SlurmdTimeout=300
NodeName=DEFAULT CPUs=1
NodeName=gpu-1 NodeAddr=10.0.0.3 CPUs=1
NodeName=gpu-2 NodeAddr=10.0.0.4 CPUs=1
NodeName=cloud-1 CPUs=1 State=CLOUD
"""
CRED_EXPIRE_S = 10
"""Shortest time after which a requeued job may start again (cred_expire)."""
PROBES_S = 6
"""The last look at the controller, which may take two probes, and that at the other nodes."""


def test_the_cluster_is_read_from_the_configuration_of_slurmd() -> None:
    assert parse_cluster(CONF, "gpu-1") == Cluster("10.0.0.2", ("10.0.0.4",), 300.0)
    assert parse_cluster(CONF.replace("(10.0.0.2)", ""), "cloud-1") == Cluster(
        "controller", ("10.0.0.3", "10.0.0.4"), 300.0
    )
    assert parse_cluster("SlurmctldHost=controller\n", "gpu-1") is None
    assert parse_cluster("", "gpu-1") is None


@pytest.mark.parametrize(
    ("answers", "silent_s", "stopped", "cut_off", "verdict"),
    [
        (True, 1, False, False, "wait"),
        (False, 14, False, False, "wait"),
        (False, 15, False, True, "stop"),
        # Other nodes answer: slurmctld's machine is gone, and jobs survive that.
        (False, 900, False, False, "wait"),
        # A process that started late is stopped, too.
        (False, 16, True, False, "stop"),
        (True, 16, True, False, "rejoin"),
        # The whole machine was suspended: Slurm may have requeued its jobs meanwhile.
        (True, 15, False, False, "rejoin"),
    ],
)
def test_decision(answers: bool, silent_s: float, stopped: bool, cut_off: bool, verdict: Verdict) -> None:
    assert decide(answers=answers, silent_s=silent_s, limit_s=15, stopped=stopped, cut_off=cut_off) == verdict


def test_a_node_that_slurm_never_marks_down_stops_nothing() -> None:
    assert decide(answers=False, silent_s=1e6, limit_s=0, stopped=False, cut_off=True) == "wait"
    assert decide(answers=True, silent_s=1e6, limit_s=0, stopped=False, cut_off=False) == "wait"


@pytest.mark.parametrize("timeout_s", [10, 20, 30, 60, 300, 3600])
def test_jobs_are_stopped_before_slurm_can_start_them_elsewhere(timeout_s: int) -> None:
    cluster = Cluster("controller", ("peer",), timeout_s)
    stopped_s = cluster.limit_s + cluster.pause_s + PROBES_S
    # slurmctld heard of the node a third of the time before the cut at most.
    requeued_s = timeout_s - timeout_s / 3
    assert stopped_s < requeued_s + CRED_EXPIRE_S
