"""A node is cut off from the network: briefly, so that its job runs on, or so long that the job runs elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from slurm.control.nodes import NodeState, parse_nodes, show_nodes
from tests.fault_matrix.times import record
from tests.faults.test_controller_outage import read_state
from tests.harness import Stack, wait_until

# In the node itself, because Docker's network would give it another address; loopback stays.
CUT = """nft add table inet cut
    nft add chain inet cut in '{ type filter hook input priority 0; policy drop; }'
    nft add chain inet cut out '{ type filter hook output priority 0; policy drop; }'
    nft add rule inet cut in iif lo accept
    nft add rule inet cut out oif lo accept"""
HEAL = "nft delete table inet cut"
SHORT_S = 10
BEAT = """#!/bin/bash
while :; do echo "$(date +%s.%N) $(hostname)" >>~/beats; sleep 0.5; done"""


@contextmanager
def cut_off(stack: Stack, node: str) -> Iterator[None]:
    """Cut a node off until the end of the block."""
    assert stack.container(node).exec_run(["bash", "-ec", CUT]).exit_code == 0
    try:
        yield
    finally:
        stack.container(node).exec_run(["bash", "-ec", HEAL])


@pytest.mark.nightly
@pytest.mark.fault(5)
def test_a_short_cut_is_not_noticed_by_the_job(healthy: Stack) -> None:
    script = "srun bash -c 'for beat in {1..15}; do sleep 1; done; hostname'"
    submit = f'cd ~ && sbatch --parsable -p gpu -w gpu-1,gpu-2 -N2 -o short-cut.out --wrap "{script}"'
    job = healthy.ssh("controller", submit)
    wait_until(lambda: read_state(healthy, job) == "RUNNING", "the job runs")
    with cut_off(healthy, "gpu-2"):
        time.sleep(SHORT_S)
    wait_until(lambda: read_state(healthy, job) == "COMPLETED", "the job completes")
    assert healthy.ssh("controller", f"scontrol show job {job} | grep -o 'Restarts=[0-9]*'") == "Restarts=0"
    assert sorted(healthy.ssh("controller", "cat ~/short-cut.out").split()) == ["gpu-1", "gpu-2"]
    assert not read_node(healthy, "gpu-2").out_of_service


def read_node(stack: Stack, name: str) -> NodeState:
    return parse_nodes(stack.ssh("controller", show_nodes([name]), user="root"))[name]


@pytest.mark.nightly
@pytest.mark.fault(5)
def test_after_a_long_cut_no_old_step_runs_beside_its_successor_and_the_node_returns(healthy: Stack) -> None:
    """Each beat of the job names its node, on the shared filesystem, which the cut does not reach."""
    healthy.ssh("controller", f"cat >~/beat.sh <<'END'\n{BEAT}\nEND\nrm -f ~/beats")
    job = healthy.ssh("controller", "cd ~ && sbatch --parsable -p gpu -N1 --requeue -o /dev/null beat.sh")
    wait_until(lambda: read_beats(healthy) != [], "the job beats")
    node = read_beats(healthy)[0][1]
    with cut_off(healthy, node):
        began = time.monotonic()
        wait_until(lambda: read_beats(healthy)[-1][1] != node, "the successor beats")
        detect_s = time.monotonic() - began
        wait_until(lambda: read_node(healthy, node).state == "DOWN", "Slurm has the node down")
    healed = time.monotonic()
    wait_until(lambda: not read_node(healthy, node).out_of_service, "the node is back")
    record(5, detect_s=detect_s, recover_s=time.monotonic() - healed)
    assert healthy.ssh(node, "pgrep -f beat.sh || true", user="root") == ""
    beats = read_beats(healthy)
    healthy.ssh("controller", f"scancel {job}")
    first_of_successor = min(float(at) for at, where in beats if where != node)
    last_of_old = max(float(at) for at, where in beats if where == node)
    assert last_of_old < first_of_successor
    assert healthy.ssh("controller", f"srun -p gpu -w {node} -N1 hostname") == node


def read_beats(stack: Stack) -> list[list[str]]:
    return [line.split() for line in stack.ssh("controller", "cat ~/beats 2>/dev/null || true").splitlines()]
