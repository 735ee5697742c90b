"""A node with a full disk, another key or another configuration is named, and comes back."""

from __future__ import annotations

import base64
import time

import pytest

from slurm.control.nodes import NodeState, parse_nodes, show_nodes
from tests.e2e.test_bootstrap_command import bootstrap
from tests.fault_matrix.times import record
from tests.faults.test_controller_outage import read_state
from tests.harness import Stack, wait_until

NODE = "gpu-2"
# /tmp of a node is in memory, so that it can be made small.
FILL_TMP = "mount -o remount,size=32m /tmp && fallocate -l $((31 * 1024 + 900))K /tmp/fill"
EMPTY_TMP = "rm /tmp/fill; mount -o remount,size=50% /tmp"
HEALTH = "/etc/muster/health"
# slurmd runs the checks every minute.
ROUND_S = 90.0
ROUNDS = f"for round in 1 2 3; do {HEALTH}; done"
KEY = "/etc/slurm/slurm.key"
OTHER_KEY = f"""cp -p {KEY} /root/ && head -c 1024 /dev/urandom >/root/other && cat /root/other >{KEY}
    systemctl restart --no-block slurmd"""
# A user's process outside of jobs, and an nvidia-smi that says that it uses a GPU.
LEFT = "sleep 4321"
LEAVE = f"setsid setpriv --reuid=2345 --regid=2345 --clear-groups {LEFT} >/dev/null 2>&1 </dev/null &"
EXPECTED = "/etc/muster/expected.json"
FAKE_GPU = f"""cat >/usr/local/bin/nvidia-smi <<'END'
#!/bin/sh
case $* in *compute-apps*) pgrep -xf '{LEFT}' ;; *) echo 0, 0, 0, 0, 0x0 ;; esac
END
chmod 755 /usr/local/bin/nvidia-smi && cp {EXPECTED} ~/
python3 - <<'END'
import json
expected = json.load(open("{EXPECTED}")) | {{"gpus": 1, "disabled": ["xid"]}}
json.dump(expected, open("{EXPECTED}", "w"))
END"""
REAL_GPU = f"cp ~/expected.json {EXPECTED}; rm -f /usr/local/bin/nvidia-smi"
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


@pytest.mark.nightly
@pytest.mark.fault(9)
def test_slurmd_finds_a_full_disk_and_returns_the_node_by_itself(healthy: Stack) -> None:
    healthy.ssh(NODE, FILL_TMP, user="root")
    filled = time.monotonic()
    try:
        wait_until(lambda: read_node(healthy).out_of_service, "a round drains the node", ROUND_S * 3)
        detect_s = time.monotonic() - filled
    finally:
        healthy.ssh(NODE, EMPTY_TMP, user="root")
    emptied = time.monotonic()
    wait_until(lambda: not read_node(healthy).out_of_service, "good rounds return the node", ROUND_S * 4)
    record(9, detect_s=detect_s, recover_s=time.monotonic() - emptied)


@pytest.mark.nightly
@pytest.mark.fault(34)
def test_a_process_left_on_a_gpu_is_named_and_no_job_starts_there(healthy: Stack) -> None:
    healthy.ssh(NODE, FAKE_GPU, user="root")
    try:
        healthy.ssh(NODE, LEAVE, user="root")
        pid = healthy.ssh(NODE, f"pgrep -xf '{LEFT}'", user="root")
        began = time.monotonic()
        wait_until(lambda: read_node(healthy).out_of_service, "a round drains the node", ROUND_S * 3)
        detect_s = time.monotonic() - began
        drained = read_node(healthy)
        job = healthy.ssh("controller", f"cd ~ && sbatch --parsable -p gpu -w {NODE} -N1 -o left.out --wrap hostname")
        # It does not start while the node is drained, and runs once the process is gone.
        healthy.ssh(NODE, HEALTH, user="root")
        waiting = read_state(healthy, job)
        healthy.ssh(NODE, f"pkill -KILL -xf '{LEFT}'", user="root")
        ended = time.monotonic()
        wait_until(lambda: read_state(healthy, job) == "COMPLETED", "the job has run", ROUND_S * 4)
        recover_s = time.monotonic() - ended
    finally:
        healthy.ssh(NODE, f"pkill -KILL -xf '{LEFT}'; {REAL_GPU}", user="root", check=False)
    assert drained.reason == f"health: gpu-processes: sleep (pid {pid} of 2345) uses a GPU and belongs to no job"
    assert waiting == "PENDING"
    record(34, detect_s=detect_s, recover_s=recover_s)


@pytest.mark.fault(16)
def test_a_node_with_another_key_is_named_and_repaired(healthy: Stack) -> None:
    key = healthy.ssh(NODE, f"base64 -w0 {KEY}", user="root")
    healthy.ssh(NODE, OTHER_KEY, user="root")
    done = bootstrap(healthy, "doctor")
    other = healthy.ssh(NODE, "base64 -w0 /root/other", user="root")
    began = time.monotonic()
    up = healthy.up()
    assert done.returncode == 1
    assert f"{NODE} differs from the stack file (compute): write {KEY}" in done.stdout
    assert healthy.ssh(NODE, f"base64 -w0 {KEY}", user="root") == key
    assert healthy.ssh("controller", f"srun -p gpu -w {NODE} -N1 hostname") == NODE
    record(16, recover_s=time.monotonic() - began)
    for text in (key, other, base64.b64decode(key).hex()):
        assert text[:24] not in done.stdout + done.stderr + up.stdout + up.stderr


@pytest.mark.nightly
@pytest.mark.fault(18)
def test_a_configuration_that_differs_is_named_and_replaced(healthy: Stack) -> None:
    healthy.ssh(NODE, f"echo '# mine' >>{FETCHED}", user="root")
    began = time.monotonic()
    done = bootstrap(healthy, "verify")
    detect_s = time.monotonic() - began
    healthy.ssh(NODE, "systemctl restart slurmd", user="root")
    restarted = time.monotonic()
    after = bootstrap(healthy, "verify")
    recover_s = time.monotonic() - restarted
    assert done.returncode == 1
    assert f"{NODE}" in done.stdout + done.stderr
    assert f"configuration: {FETCHED} is not the cluster's" in done.stdout + done.stderr
    assert (after.returncode, after.stderr) == (0, ""), after.stdout
    record(18, detect_s=detect_s, recover_s=recover_s)


def read_node(stack: Stack) -> NodeState:
    return parse_nodes(stack.ssh("controller", show_nodes([NODE]), user="root"))[NODE]
