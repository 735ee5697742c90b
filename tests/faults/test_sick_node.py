"""A node with a full disk, another key or another configuration is named, and comes back."""

from __future__ import annotations

import base64

import pytest

from slurm.control.nodes import NodeState, parse_nodes, show_nodes
from tests.e2e.test_bootstrap_command import bootstrap
from tests.harness import Stack, wait_until

NODE = "gpu-2"
# /tmp of a node is in memory, so that it can be made small.
FILL_TMP = "mount -o remount,size=32m /tmp && fallocate -l $((31 * 1024 + 900))K /tmp/fill"
EMPTY_TMP = "rm /tmp/fill; mount -o remount,size=50% /tmp"
HEALTH = "/etc/muster/health"
ROUNDS = f"for round in 1 2 3; do {HEALTH}; done"
KEY = "/etc/slurm/slurm.key"
OTHER_KEY = f"""cp -p {KEY} /root/ && head -c 1024 /dev/urandom >/root/other && cat /root/other >{KEY}
    systemctl restart --no-block slurmd"""
FETCHED = "/run/slurm/conf/slurm.conf"


@pytest.mark.fault(9)
def test_a_node_with_a_full_disk_is_drained_and_comes_back(healthy: Stack) -> None:
    healthy.ssh(NODE, FILL_TMP, user="root")
    try:
        healthy.ssh(NODE, HEALTH, user="root")
        drained = read_node(healthy)
    finally:
        healthy.ssh(NODE, f"{EMPTY_TMP}; {ROUNDS}", user="root")
    assert drained.out_of_service
    assert drained.reason == "health: disk: /tmp has 0 MB free of 32"
    wait_until(lambda: read_node(healthy).state == "IDLE" and not read_node(healthy).out_of_service, "it is back")


@pytest.mark.fault(16)
def test_a_node_with_another_key_is_named_and_repaired(healthy: Stack) -> None:
    key = healthy.ssh(NODE, f"base64 -w0 {KEY}", user="root")
    healthy.ssh(NODE, OTHER_KEY, user="root")
    done = bootstrap(healthy, "doctor")
    other = healthy.ssh(NODE, "base64 -w0 /root/other", user="root")
    up = healthy.up()
    assert done.returncode == 1
    assert f"{NODE} differs from the stack file (compute): write {KEY}" in done.stdout
    assert healthy.ssh(NODE, f"base64 -w0 {KEY}", user="root") == key
    assert healthy.ssh("controller", f"srun -p gpu -w {NODE} -N1 hostname") == NODE
    for text in (key, other, base64.b64decode(key).hex()):
        assert text[:24] not in done.stdout + done.stderr + up.stdout + up.stderr


@pytest.mark.nightly
@pytest.mark.fault(18)
def test_a_configuration_that_differs_is_named_and_replaced(healthy: Stack) -> None:
    healthy.ssh(NODE, f"echo '# mine' >>{FETCHED}", user="root")
    done = bootstrap(healthy, "verify")
    healthy.ssh(NODE, "systemctl restart slurmd", user="root")
    after = bootstrap(healthy, "verify")
    assert done.returncode == 1
    assert f"{NODE}" in done.stdout + done.stderr
    assert f"configuration: {FETCHED} is not the cluster's" in done.stdout + done.stderr
    assert (after.returncode, after.stderr) == (0, ""), after.stdout


def read_node(stack: Stack) -> NodeState:
    return parse_nodes(stack.ssh("controller", show_nodes([NODE]), user="root"))[NODE]
