"""A step that cannot be killed and a check that hangs: both are named, the node is drained meanwhile and returns."""

from __future__ import annotations

import time

import pytest

from tests.fault_matrix.times import record
from tests.faults.test_controller_outage import read_state
from tests.faults.test_cut_off_node import read_node
from tests.harness import Stack, wait_until

NODE = "gpu-2"
HEALTH = "/etc/muster/health"
# A frozen process does not obey SIGKILL, like one that waits for a file server. slurmstepd, which is in the same group,
# must not be frozen.
FREEZE = """group=$(find /run/cgv1/freezer -name job_{job})
    for pid in $(pgrep slurmstepd); do echo $pid >${{group%/uid_*}}/cgroup.procs; done
    echo FROZEN >$group/freezer.state"""
THAW = (
    "find /run/cgv1/freezer -name freezer.state | while read -r state; do echo THAWED >$state; done 2>/dev/null; true"
)
DF = "/usr/local/bin/df"
HANG_DF = f"printf '#!/bin/sh\\nexec sleep 4444\\n' >{DF} && chmod 755 {DF}"
EXPECTED = "/etc/muster/expected.json"
DISABLE = f"""cp -p {EXPECTED} /root/ && sed -i 's/^{{/{{"disabled": ["disk"], /' {EXPECTED}"""
RESTORE = f"[ ! -e /root/expected.json ] || mv /root/expected.json {EXPECTED}"
# slurmd runs the checks every minute.
ROUND_S = 90.0
ROUNDS = f"for round in 1 2 3; do {HEALTH}; done"


@pytest.mark.nightly
@pytest.mark.fault(36)
def test_a_step_that_cannot_be_killed_is_named_and_its_node_drained_until_it_is_gone(healthy: Stack) -> None:
    job = healthy.ssh("controller", f"cd ~ && sbatch --parsable -p gpu -w {NODE} -N1 --wrap 'exec sleep 5555'")
    wait_until(lambda: healthy.ssh(NODE, "pgrep -f 'sleep 5555' || true", user="root") != "", "the job runs")
    healthy.ssh(NODE, FREEZE.format(job=job), user="root")
    try:
        # KILL at once: Slurm would wait kill_wait_s after SIGTERM.
        healthy.ssh("controller", f"scancel --signal=KILL --full {job}")
        wait_until(lambda: is_killed(healthy), "SIGKILL was sent")
        killed = time.monotonic()
        wait_until(lambda: read_node(healthy, NODE).out_of_service, "two rounds drain the node", ROUND_S * 3)
        detect_s = time.monotonic() - killed
        drained = read_node(healthy, NODE)
    finally:
        healthy.ssh(NODE, THAW, user="root")
    thawed = time.monotonic()
    assert drained.out_of_service
    assert drained.reason.startswith(f"health: unkillable: job {job}: ")
    assert "state D" in drained.reason
    wait_until(lambda: healthy.ssh(NODE, "pgrep -f 'sleep 5555' || true", user="root") == "", "it is gone")
    wait_until(lambda: not read_node(healthy, NODE).out_of_service, "good rounds return the node", ROUND_S * 4)
    record(36, detect_s=detect_s, recover_s=time.monotonic() - thawed)


@pytest.mark.nightly
@pytest.mark.fault(35)
def test_a_check_that_hangs_is_named_and_blocks_neither_slurmd_nor_jobs(healthy: Stack) -> None:
    job = healthy.ssh("controller", f"cd ~ && sbatch --parsable -p gpu -w {NODE} -N1 --wrap 'sleep 20; srun hostname'")
    wait_until(lambda: read_state(healthy, job) == "RUNNING", "the job runs")
    healthy.ssh(NODE, HANG_DF, user="root")
    try:
        began = time.monotonic()
        healthy.ssh(NODE, f"{HEALTH} >/dev/null 2>&1 </dev/null &", user="root")
        # Its step starts while the check hangs, so slurmd answers.
        wait_until(lambda: read_state(healthy, job) == "COMPLETED", "the job completes")
        wait_until(lambda: read_node(healthy, NODE).out_of_service, "the node is drained", 90)
        record(35, detect_s=time.monotonic() - began)
        drained = read_node(healthy, NODE)
    finally:
        heal(healthy)
    assert drained.reason.startswith("health: disk: no answer within 30 s")
    wait_until(lambda: not read_node(healthy, NODE).out_of_service, "the node is back")
    wait_until(lambda: healthy.ssh(NODE, "pgrep -f 'sleep 4444' || true", user="root") == "", "what hung was killed")


@pytest.mark.nightly
@pytest.mark.fault(35)
def test_a_check_that_hangs_leaves_the_node_in_service_if_users_are_to_blame(healthy: Stack) -> None:
    # A round that slurmd starts in between must not find `disk` hanging.
    healthy.ssh(NODE, f"{DISABLE}; {HANG_DF}", user="root")
    try:
        healthy.ssh(NODE, HEALTH, user="root")
        node = read_node(healthy, NODE)
    finally:
        heal(healthy)
    assert not node.out_of_service
    assert node.comment == "health: not drained, a user causes it: job-disk: no answer within 30 s"
    assert read_node(healthy, NODE).comment == ""


def heal(stack: Stack) -> None:
    """Let df answer again; a round that slurmd has started still waits for it, and would drain the node later."""
    stack.ssh(NODE, f"rm -f {DF}", user="root")
    wait_until(lambda: stack.ssh(NODE, "pgrep -f 'health[.]pyz interval' || true", user="root") == "", "no round runs")
    stack.ssh(NODE, f"{RESTORE}; {ROUNDS}", user="root")


def is_killed(stack: Stack) -> bool:
    """Return whether SIGKILL waits for the job's process."""
    pending = "grep -hE '^(SigPnd|ShdPnd)' /proc/$(pgrep -of 'sleep 5555')/status"
    return any(int(line.split()[1], 16) & 0x100 for line in stack.ssh(NODE, pending, user="root").splitlines())
