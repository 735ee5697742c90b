"""`muster fabric` on real nodes: a table of pairs; a node behind a slow link is taken away with its reason."""

from __future__ import annotations

import re

import pytest

from tests.harness import Stack

SLOW = "tc qdisc add dev eth0 root tbf rate 500mbit burst 256kb latency 50ms"
HEAL = "tc qdisc del dev eth0 root"
# A node of the measuring job is completing, or draining instead of drained, until its epilog has ended.
STATES = """for second in $(seq 60); do sinfo -h -p cpu -t completing | grep -q . || break; sleep 1; done
    sinfo -h -N -p cpu -o '%N|%T|%E' | sort"""


@pytest.mark.fault(6)
@pytest.mark.nightly
def test_a_node_that_is_below_is_drained_and_the_others_are_not(cluster: Stack) -> None:
    cluster.ssh("cpu-2", SLOW, user="root")
    try:
        done = cluster.muster("fabric", "--partition", "cpu", check=False)
        states = cluster.ssh("login", STATES).splitlines()
    finally:
        cluster.ssh("cpu-2", HEAL, user="root")
        cluster.ssh("controller", "scontrol update nodename=cpu-2 state=resume", user="root", check=False)
    output = done.stdout + done.stderr
    assert done.returncode == 1, output
    assert re.search(r"cpu-1 - cpu-2 +tcp +[\d.]+ +unknown +cpu-2 is too slow", output), output
    assert re.search(r"cpu-1 - cpu-3 +tcp +[\d.]+ +unknown +good", output), output
    assert states[0] == "cpu-1|idle|none"
    assert re.fullmatch(r"cpu-2\|drained\|health: fabric: [\d.]+ GB/s at best with its neighbours, .*", states[1])
    assert states[2] == "cpu-3|idle|none"


@pytest.mark.nightly
def test_a_healthy_fabric_passes_and_nodes_can_be_named(cluster: Stack) -> None:
    done = cluster.muster("fabric", "--nodes", "cpu-[1,3]", "--no-drain")
    assert "fabric: every pair of nodes is as fast as the others" in done.stdout
    assert re.search(r"cpu-1 - cpu-3 +tcp +[\d.]+ +unknown +good", done.stdout)


def test_nodes_that_are_not_there_are_named(cluster: Stack) -> None:
    done = cluster.muster("fabric", "--nodes", "gpu-9", check=False)
    assert done.returncode == 2
    assert "there is no gpu-9" in done.stdout + done.stderr
