"""A rotation of the Slurm key on a running cluster: no job is lost, and whoever has the old key is refused."""

from __future__ import annotations

import os
import signal

import pytest

from tests.harness import Stack, wait_until

# Someone who copied a key earlier runs a sackd of their own with it: it signs requests of Slurm's commands. A private
# /run/slurm keeps the socket of the node's own daemon from them.
WITH_KEY = """set -eu
export work=$(mktemp -d)
trap 'rm -rf $work' EXIT
cp -rL /run/slurm/conf $work/conf
echo {key} | base64 -d >$work/key
chown -R slurm:slurm $work
chmod 600 $work/key
unshare -m bash -s <<'OWN_MOUNTS' 2>&1
mount -t tmpfs none /run/slurm
export SLURM_CONF=$work/conf/slurm.conf SLURM_SACK_KEY=$work/key SACKD_DISABLE_RECONFIG=1
sackd -D -f $SLURM_CONF >$work/sackd.log 2>&1 &
for _ in $(seq 300); do [ -S /run/slurm/sack.socket ] && break; sleep 0.1; done
timeout 60 {command} && echo accepted || echo refused
kill %1
OWN_MOUNTS
"""
DRAIN = "scontrol update nodename=cpu-1 state=drain reason=attack"
# Its second step starts after the rotation.
RUNNING = """#!/bin/bash
srun sh -c 'touch ~/rotation-runs; until [ -e ~/rotation-ends ]; do sleep 0.2; done' || exit 1
srun -n1 hostname >~/rotation-step
"""


def act_with_key(stack: Stack, key: str, command: str) -> str:
    """Run a command of Slurm on the login node, as root and with a key given in base64; return its output."""
    return stack.ssh("login", WITH_KEY.replace("{key}", key).replace("{command}", command), user="root")


def read_key(stack: Stack) -> str:
    return stack.ssh("controller", "base64 -w0 /etc/slurm/slurm.key", user="root")


def describe_job(stack: Stack, job: str) -> dict[str, str]:
    shown = stack.ssh("controller", f"scontrol -o show job {job}", user="root")
    fields = dict(field.split("=", 1) for field in shown.split() if "=" in field)
    return {name: fields[name] for name in ("JobState", "Restarts", "StartTime")}


def read_states(stack: Stack, *jobs: str) -> list[str]:
    return stack.ssh("controller", f"sacct -nXP -j {','.join(jobs)} -o State", user="root").split()


@pytest.mark.attack(5)
@pytest.mark.nightly
def test_a_rotation_loses_no_job_and_the_old_key_is_refused(cluster: Stack) -> None:
    old = read_key(cluster)
    assert "accepted" in act_with_key(cluster, old, "scontrol show node cpu-1")
    prepare = "cd ~; rm -f rotation-*; "
    submit = "sbatch --parsable -p gpu -N1 -n1 -o /dev/null"
    running = cluster.ssh("login", f"{prepare}{submit} <<'JOB'\n{RUNNING}JOB", user="alice")
    queued = cluster.ssh("login", f"cd ~; {submit} -d afterok:{running} --wrap 'srun true'", user="alice")
    look = "ls ~/rotation-runs 2>/dev/null || true"
    wait_until(lambda: cluster.ssh("login", look, user="alice") != "", f"job {running} runs")
    before = describe_job(cluster, running)
    try:
        printed = cluster.muster("rotate keys").stdout
    finally:
        after = describe_job(cluster, running)
        cluster.ssh("login", "touch ~/rotation-ends", user="alice")
    assert [line for line in printed.splitlines() if line.startswith("step ")] == [
        "step 1 of 3: every node accepts the old and the new key",
        "step 2 of 3: every node signs with the new key",
        "step 3 of 3: no node accepts the old key any more",
    ]
    assert after == before, "it neither ended nor started again"
    wait_until(lambda: read_states(cluster, running, queued) == ["COMPLETED"] * 2, "both jobs complete")
    assert cluster.ssh("login", "cat ~/rotation-step", user="alice").startswith("gpu-")

    new = read_key(cluster)
    assert new != old
    nodes = [node["name"] for node in cluster.inventory["nodes"]]
    files = {node: cluster.ssh(node, "base64 -w0 /etc/slurm/slurm.key; ls /etc/slurm", user="root") for node in nodes}
    assert [node for node in nodes if not files[node].startswith(new) or "slurm.jwks" in files[node]] == []
    assert "accepted" in act_with_key(cluster, new, "scontrol show node cpu-1")
    refusal = act_with_key(cluster, old, DRAIN)
    assert "refused" in refusal
    assert "accepted" not in refusal
    assert cluster.ssh("controller", "sinfo -h -N -n cpu-1 -o %T", user="root").split() == ["idle"]


@pytest.mark.nightly
def test_up_finishes_a_rotation_that_was_killed(cluster: Stack) -> None:
    old = read_key(cluster)
    process = cluster.start("rotate keys")
    look = "ls /etc/slurm/slurm.jwks 2>/dev/null || true"
    wait_until(lambda: cluster.ssh("gpu-1", look, user="root") != "", "gpu-1 has both keys", 300)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    printed = cluster.up("--wait").stdout
    assert "a rotation was interrupted: it goes on where it stopped" in printed
    assert "has a new Slurm key" in printed
    assert read_key(cluster) != old
    nodes = [node["name"] for node in cluster.inventory["nodes"]]
    assert [node for node in nodes if cluster.ssh(node, look, user="root")] == []
    assert "refused" in act_with_key(cluster, old, DRAIN)
    assert cluster.ssh("login", "srun -p gpu -N2 hostname", user="alice").split() != []
    assert "nothing to change" in cluster.up().stdout
