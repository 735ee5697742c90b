"""A node is cut off from the network for less than Slurm's time to miss it: its job runs on."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from slurm.control.nodes import NodeState, parse_nodes, show_nodes
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
