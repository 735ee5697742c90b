"""A node that fails its checks is drained and resumed; the fabric job compares measurements with expectations.

By day, tests/slurm/test_jobs_fabric.py runs the fabric job with stubs.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from slurm.control.nodes import NodeState, parse_nodes, show_nodes
from slurm.health.drain import CAP_PREFIX
from tests.harness import Stack

FABRIC = "slurm/jobs/fabric.sbatch"
EXPECTED = "/etc/muster/expected.json"
KEEP = f"cp {EXPECTED} /root/expected.json"
# A node takes a moment to reach a state: it is draining until the epilog of its last job has ended, and a node that was
# given back is taken for silent until its next answer.
WAIT_FOR_STATE = """for second in $(seq 60); do
    state=$(sinfo -h -n gpu-2 -o '%T|%E' | head -n 1); case $state in {0}\\|*) break ;; esac; sleep 1
done; echo "$state\""""
RESTORE = f"cp /root/expected.json {EXPECTED}"


def test_a_broken_node_is_drained_with_the_reason_and_comes_back(cluster: Stack) -> None:
    cluster.ssh("gpu-2", f'{KEEP}; sed -i \'s#"/shared"#"/shared", "/nowhere"#\' {EXPECTED}', user="root")
    try:
        cluster.ssh("gpu-2", "/etc/muster/health", user="root")
        state = cluster.ssh("login", WAIT_FOR_STATE.format("drained"))
    finally:
        cluster.ssh("gpu-2", f"{RESTORE}; for round in 1 2 3; do /etc/muster/health; done", user="root")
    assert state == "drained|health: mounts: /nowhere is not mounted"
    assert cluster.ssh("login", WAIT_FOR_STATE.format("idle")) == "idle|none"


@pytest.mark.nightly
def test_a_reason_that_a_person_gave_stays(cluster: Stack) -> None:
    cluster.ssh("controller", "scontrol update nodename=gpu-2 state=drain reason='new memory'", user="root")
    try:
        cluster.ssh("gpu-2", f'{KEEP}; sed -i \'s#"/shared"#"/nowhere"#\' {EXPECTED}; /etc/muster/health', user="root")
        cluster.ssh("gpu-2", f"{RESTORE}; for round in 1 2 3; do /etc/muster/health; done", user="root")
        state = cluster.ssh("login", WAIT_FOR_STATE.format("drained"))
    finally:
        cluster.ssh("gpu-2", RESTORE, user="root")
        cluster.ssh("controller", "scontrol update nodename=gpu-2 state=resume", user="root")
    assert state == "drained|new memory"


@pytest.mark.nightly
def test_a_fault_of_all_nodes_at_once_drains_only_some(cluster: Stack) -> None:
    """A file server that is gone breaks every node at the same moment; at most 20 % may be drained, but one always."""
    nodes = ["cpu-1", "cpu-2", "cpu-3"]

    def on_all(script: str) -> None:
        with ThreadPoolExecutor(len(nodes)) as pool:
            list(pool.map(lambda node: cluster.ssh(node, script, user="root"), nodes))

    try:
        on_all(f'{KEEP}; sed -i \'s#"/shared"#"/shared", "/nowhere"#\' {EXPECTED}; /etc/muster/health')
        broken = list_nodes(cluster, nodes)
    finally:
        on_all(f"{RESTORE}; for round in 1 2 3; do /etc/muster/health; done")
    problem = "mounts: /nowhere is not mounted"
    drained = [name for name, node in broken.items() if node.out_of_service]
    assert [broken[name].reason for name in drained] == [f"health: {problem}"]
    held = {name: node.comment for name, node in broken.items() if name not in drained}
    assert held == dict.fromkeys(set(nodes) - set(drained), f"{CAP_PREFIX}{problem}")
    healed = list_nodes(cluster, nodes)
    assert [(node.out_of_service, node.comment) for node in healed.values()] == [(False, "")] * len(nodes)


def list_nodes(cluster: Stack, names: list[str]) -> dict[str, NodeState]:
    return parse_nodes(cluster.ssh("controller", show_nodes(names), user="root"))


@pytest.mark.nightly
def test_the_fabric_job_passes_where_nothing_faster_is_promised(cluster: Stack) -> None:
    out = cluster.ssh("login", f"cd ~ && sbatch --wait -J fast /shared/muster/{FABRIC} && cat fast-*.out")
    assert "fabric: passed" in out


@pytest.mark.nightly
def test_below_what_the_machine_should_reach_pairs_are_measured_and_the_job_fails(cluster: Stack) -> None:
    promised = '"busbw": {"67108864": 900.0}'
    cluster.ssh("gpu-1", f"{KEEP}; sed -i 's#\"busbw\": {{}}#{promised}#' {EXPECTED}", user="root")
    try:
        out = cluster.ssh("login", f"cd ~; sbatch --wait -J slow /shared/muster/{FABRIC} || true; cat slow-*.out")
    finally:
        cluster.ssh("gpu-1", RESTORE, user="root")
    assert "GB/s at 64 MiB is 0% of the expected 900.0" in out
    assert "fabric: gpu-1 and gpu-2: " in out
    assert "fabric: FAILED" in out
