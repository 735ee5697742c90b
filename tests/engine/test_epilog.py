"""What the epilog kills when a job has ended: real processes in a container, in cgroups that the tests name."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator

import pytest

from bootstrap.steps.isolation import render_epilog
from cluster import names
from cluster.spec.model import Software
from infra.targets.local.build.node_container import UNCONFINED
from slurm.health.admins import ADMINS_FILE

CLUSTER = f"epilog-{os.getpid():x}"
# Slurm's daemons are replaced by a shell, which can start any process below itself.
PREPARE = f"""
mkdir -p {os.path.dirname(ADMINS_FILE)} && echo bob >{ADMINS_FILE}
for daemon in slurmd slurmstepd; do cp /usr/bin/bash "$(readlink -f /usr/sbin/$daemon)"; done
install -m 755 /usr/bin/bash /opt/slurmstepd
exec sleep infinity
"""
# Starts a process of USER below nothing, or below a program that root or the user runs, and waits until it runs.
START = """
set -eu
as_user="setpriv --reuid=$USER --regid=$USER --clear-groups"
case $PARENT in
  "") setsid $as_user sleep 9876 & ;;
  user:*) setsid $as_user "${PARENT#user:}" -c 'sleep 9876; true' & ;;
  *) AS_USER=$as_user setsid "$PARENT" -c '$AS_USER sleep 9876; true' & ;;
esac >/dev/null 2>&1 </dev/null
until pid=$(pgrep -xf 'sleep 9876' -u "$USER"); do sleep 0.05; done
if [ -n "$UPGRADE" ]; then cp "$PARENT" /new && mv /new "$(readlink -f "$PARENT")"; fi
if [ -n "$GROUP" ]; then echo "0::$GROUP" >/group && mount --bind /group /proc/$pid/cgroup; fi
"""
END = """
umount /proc/[0-9]*/cgroup 2>/dev/null
pkill -KILL -xf 'sleep 9876'
while pgrep -xf 'sleep 9876'; do sleep 0.05; done
"""


@pytest.fixture(scope="module")
def node() -> Iterator[str]:
    name = f"muster-{CLUSTER}"
    options = [f"--security-opt={option}" for option in UNCONFINED]
    options += [f"--label={names.CLUSTER}={CLUSTER}", "--network=none", "--init", "--cap-add=SYS_ADMIN"]
    options += ["--cap-add=SYS_PTRACE", "--entrypoint=bash"]
    subprocess.run(
        ["docker", "run", "-d", "--name", name, *options, names.image(Software().slurm), "-ec", PREPARE],
        check=True,
        capture_output=True,
    )
    try:
        run(name, "until [ -e /opt/slurmstepd ]; do sleep 0.05; done")
        run(name, "cat >/epilog && chmod 755 /epilog", data=render_epilog(gpus=False))
        yield name
    finally:
        subprocess.run(["docker", "rm", "-f", name], check=True, capture_output=True)


def run(node: str, script: str, data: str = "", **environment: str) -> str:
    options = [f"--env={name}={value}" for name, value in environment.items()]
    done = subprocess.run(
        ["docker", "exec", "-i", *options, node, "bash", "-c", script], input=data, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


ALICE = "2001 alice"


# For each process: where it runs, the user id and name of the job that has ended, and what becomes of the process.
@pytest.mark.attack(3, place="real processes")
@pytest.mark.parametrize(
    ("process", "job", "outcome"),
    [
        pytest.param({}, ALICE, "killed", id="outside of jobs"),
        pytest.param({}, "2003 carol", "spared", id="of another user"),
        pytest.param({}, " alice", "spared", id="job without a uid"),
        pytest.param({}, "alice alice", "spared", id="uid that is no number"),
        pytest.param({}, "-2001 alice", "spared", id="negative uid"),
        pytest.param({"USER": "999"}, "999 service", "spared", id="system user"),
        pytest.param({"USER": "1000"}, "1000 first", "killed", id="first ordinary user"),
        pytest.param({"USER": "2002"}, "2002 bob", "spared", id="admin"),
        pytest.param({"GROUP": "/system.slice/slurmstepd.scope/job_7/step_0"}, ALICE, "spared", id="in a job"),
        pytest.param(
            {"GROUP": "/system.slice/gpu-1_slurmstepd.scope/job_7"}, ALICE, "spared", id="job of a named node"
        ),
        pytest.param({"GROUP": "/slurm/uid_2001/job_7/step_0"}, ALICE, "spared", id="in a job, cgroup v1"),
        pytest.param({"GROUP": "/slurm_gpu-1/uid_2001/job_7"}, ALICE, "spared", id="job of a named node, cgroup v1"),
        pytest.param({"GROUP": "/machine.slice/job_7/x"}, ALICE, "killed", id="in another program's job_7"),
        pytest.param({"GROUP": "/slurm-tools/job_7"}, ALICE, "killed", id="in a group that resembles Slurm's"),
        pytest.param(
            {"GROUP": "/system.slice/notebook.service/slurmstepd.scope/job_7"},
            ALICE,
            "killed",
            id="in a group of a service that runs as the user",
        ),
        pytest.param({"GROUP": "/system.slice/cron.service"}, ALICE, "killed", id="in another cgroup"),
        pytest.param(
            {"GROUP": "/user.slice/user@2001.service/job_7/x"}, ALICE, "killed", id="in a cgroup of the user's"
        ),
        pytest.param({"PARENT": "/usr/sbin/slurmstepd"}, ALICE, "spared", id="below slurmstepd"),
        pytest.param({"PARENT": "/usr/sbin/slurmstepd", "UPGRADE": "yes"}, ALICE, "spared", id="below old slurmstepd"),
        pytest.param({"PARENT": "/opt/slurmstepd"}, ALICE, "killed", id="below root's program of that name"),
        pytest.param({"PARENT": "user:/usr/sbin/slurmstepd"}, ALICE, "killed", id="below the user's slurmstepd"),
        pytest.param({"PARENT": "/usr/sbin/slurmd"}, ALICE, "spared", id="below slurmd"),
        pytest.param({"PARENT": "user:/usr/sbin/slurmd"}, ALICE, "killed", id="below the user's slurmd"),
    ],
)
def test_only_what_a_user_left_outside_of_jobs_is_killed(
    node: str, process: dict[str, str], job: str, outcome: str
) -> None:
    run(node, START, **{"USER": "2001", "PARENT": "", "GROUP": "", "UPGRADE": ""} | process)
    try:
        uid, _, user = job.partition(" ")
        run(node, "/epilog", SLURM_JOB_UID=uid, SLURM_JOB_USER=user, SLURM_JOB_ID="7")
        left = run(node, "pgrep -xf 'sleep 9876' | wc -l")
        assert {"0": "killed", "1": "spared"}[left] == outcome
    finally:
        run(node, END)
