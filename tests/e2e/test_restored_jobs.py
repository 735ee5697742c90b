"""A job whose end was lost with its slurmctld: the next slurmctld asks the job's node, and running jobs continue."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from docker.models.containers import Container

from cluster.inventory import Inventory, Node
from cluster.spec import ClusterSpec
from slurm.config.render import render_files
from tests.container_script import BASH, run_script
from tests.e2e.daemon_container import daemon_network, start_container
from tests.harness import REPO, wait_until

PROGRAM = "slurm/control/check_restored_jobs.sh"
CLUSTER = f"restored-jobs-{os.getpid():x}"
STATE = "/var/lib/slurm/slurmctld"
# Slurm adds ten seconds, in which it does not judge the jobs that it has restored.
BATCH_START_TIMEOUT_S = 5
DAEMONS = f"""
cp -r /muster/. /etc/slurm/ && chown -R slurm:slurm /etc/slurm && chmod 600 /etc/slurm/slurm.key
mkdir -p /var/log/slurm /run/slurmctld {STATE} && chown slurm:slurm /var/log/slurm /run/slurmctld {STATE}
slurmctld && slurmd -N gpu-1 && exec sleep infinity
"""
WAIT_FOR_FILE = "until [ -e /srv/end ]; do sleep 0.2; done"


class Slurm:
    """A slurmctld and the slurmd of one node in a container."""

    def __init__(self, container: Container) -> None:
        self.container = container

    def run(self, script: str, *, check: bool = True) -> str:
        """Run a script and return its output."""
        done = run_script(self.container, script, shell=BASH, workdir="/tmp")
        assert not (check and done.code), f"{script}\nexited {done.code}\n{done.out}\n{self.read_log()}"
        return done.out.strip()

    def submit(self, script: str, *options: str) -> str:
        return self.run(f"sbatch --parsable {' '.join(options)} --wrap '{script}'")

    def read_job(self, job: str) -> tuple[str, int]:
        """Return the state of a job and how often it was requeued."""
        fields = dict(item.split("=", 1) for item in self.run(f"scontrol show job {job} -o").split() if "=" in item)
        # An empty answer was seen once on a busy machine; it is no state that a test waits for.
        return fields.get("JobState", ""), int(fields.get("Restarts", 0))

    def wait_for_state(self, state: str, *jobs: str) -> None:
        wait_until(lambda: all(self.read_job(job)[0] == state for job in jobs), f"{jobs} are {state}")

    def wait_for_node(self, state: str) -> None:
        wait_until(lambda: self.run("sinfo --noheader --format=%T") == state, f"the node is {state}")

    def wait_for_answer(self) -> None:
        wait_until(lambda: "is UP" in self.run("scontrol ping", check=False), "slurmctld answers")

    def read_log(self) -> str:
        return self.run("tail -n 40 /var/log/slurm/slurmctld.log", check=False)


@pytest.fixture
def slurm(tmp_path: Path) -> Iterator[Slurm]:
    write_config(tmp_path)
    with daemon_network(CLUSTER):
        slurm = Slurm(start_container(CLUSTER, "controller", DAEMONS, {tmp_path: "/muster", REPO: "/repo"}))
        slurm.wait_for_answer()
        slurm.wait_for_node("idle")
        yield slurm


def write_config(folder: Path) -> None:
    controller = Node(
        name="controller", role="controller", address="controller", host_key="", machine_id="", cpus=1, memory_mb=1024
    )
    node = controller.model_copy(
        update={"name": "gpu-1", "role": "compute", "group": "gpu", "cpus": 4, "memory_mb": 4096}
    )
    extra = {
        "AccountingStorageType": "accounting_storage/none",
        "AccountingStorageEnforce": "nojobs",
        # There are no users here.
        "DisableRootJobs": "NO",
        "TaskProlog": "/bin/true",
        "Epilog": "/bin/true",
        "BatchStartTimeout": str(BATCH_START_TIMEOUT_S),
    }
    spec = ClusterSpec.model_validate(
        {"name": "demo", "target": "local", "groups": {"gpu": {"count": 1}}, "slurm": {"extra": extra}}
    )
    inventory = Inventory(cluster="demo", target="local", nodes=(controller, node))
    for path, file in render_files(inventory, spec, cgroup="none", db_password="none").items():
        (folder / Path(path).name).write_text(file.content)
    (folder / "slurm.key").write_bytes(bytes(range(1, 33)))


@pytest.mark.nightly
def test_a_job_that_ended_unseen_is_not_running(slurm: Slurm) -> None:
    """Without the program, Slurm finds out after 20 pings: 200 s with this configuration."""
    ended, not_requeued = slurm.submit(WAIT_FOR_FILE), slurm.submit(WAIT_FOR_FILE, "--no-requeue")
    running = slurm.submit("sleep 1000")
    slurm.wait_for_state("RUNNING", ended, not_requeued, running)
    started_at = restart_from_earlier_state(slurm, ended, not_requeued)
    assert {slurm.read_job(job) for job in (ended, not_requeued, running)} == {("RUNNING", 0)}
    slurm.run(f"bash /repo/{PROGRAM}")
    slurm.wait_for_state("NODE_FAIL", not_requeued)
    # About 20 s on an idle machine. The bound allows for two loaded cores, and is far below the 200 s of Slurm alone.
    assert time.monotonic() - started_at < BATCH_START_TIMEOUT_S + 90
    assert slurm.read_job(ended) == ("PENDING", 1)
    assert slurm.read_job(running) == ("RUNNING", 0)
    assert slurm.run("pgrep --count --exact --full 'sleep 1000'") == "1"
    slurm.wait_for_node("mixed")

    slurm.run("scontrol update NodeName=gpu-1 State=DRAIN Reason=fan")
    assert slurm.run(f"bash /repo/{PROGRAM}") == "", "it leaves a drained node alone"
    slurm.wait_for_node("draining")


def restart_from_earlier_state(slurm: Slurm, *jobs: str) -> float:
    """Kill slurmctld after the jobs have ended, restore its state from before, and return when it answers again."""
    saved_before = slurm.run(f"stat --format=%Y.%Z {STATE}/job_state", check=False)
    slurm.submit("true", "--hold")
    wait_until(lambda: slurm.run(f"stat --format=%Y.%Z {STATE}/job_state", check=False) != saved_before, "saved")
    slurm.run(f"cp -a {STATE} /tmp/earlier && touch /srv/end")
    slurm.wait_for_state("COMPLETED", *jobs)
    slurm.run(f"pkill -KILL --exact slurmctld; rm -r {STATE} && cp -a /tmp/earlier {STATE} && slurmctld")
    slurm.wait_for_answer()
    return time.monotonic()
