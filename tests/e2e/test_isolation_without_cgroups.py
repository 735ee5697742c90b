"""With `slurm.cgroups: none`: jobs have private folders, and what they leave is killed with the user's last job."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest
from docker.models.containers import Container

from bootstrap.steps.isolation import render_epilog
from cluster import names
from cluster.inventory import Inventory, Node
from cluster.spec import ClusterSpec
from slurm.config.render import render_files
from tests.e2e.daemon_container import daemon_network, start_container
from tests.harness import wait_until

CLUSTER = f"no-cgroups-{os.getpid():x}"
DAEMONS = """
cp -r /muster/. / && chown -R slurm:slurm /etc/slurm && chmod 600 /etc/slurm/slurm.key && chmod 755 /etc/muster/epilog
mkdir -p /var/log/slurm /run/slurmctld /var/lib/slurm/slurmctld
chown slurm:slurm /var/log/slurm /run/slurmctld /var/lib/slurm/slurmctld
useradd -m -u 2001 alice && useradd -m -u 2003 carol
slurmctld && slurmd -N gpu-1 && exec sleep infinity
"""
COUNT = "pgrep -cxf 'sleep 9876' || true"
LEAVE = "setsid nohup sleep 9876 >/dev/null 2>&1 </dev/null & sleep 0.2"


@pytest.fixture(scope="module", params=["26.05", pytest.param("24.11", marks=pytest.mark.nightly)])
def node(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Container]:
    image = names.image(request.param)
    assert docker.from_env().images.list(image), "run `make setup` first"
    folder = tmp_path_factory.mktemp("no-cgroups")
    write_files(folder, request.param)
    with daemon_network(CLUSTER):
        container = start_container(CLUSTER, "controller", DAEMONS, {folder: "/muster"}, image)
        wait_until(lambda: run(container, "root", "sinfo -h -o %T") == "idle", "the node is idle")
        yield container


def run(node: Container, user: str, script: str) -> str:
    done = node.exec_run(["runuser", "-u", user, "--", "bash", "-c", script], workdir="/")
    text: str = done.output.decode().strip()
    return text


def write_files(folder: Path, release: str) -> None:
    controller = Node(
        name="controller", role="controller", address="controller", host_key="", machine_id="", cpus=1, memory_mb=1024
    )
    node = controller.model_copy(
        update={"name": "gpu-1", "role": "compute", "group": "gpu", "cpus": 2, "memory_mb": 2048}
    )
    extra = {
        "AccountingStorageType": "accounting_storage/none",
        "AccountingStorageEnforce": "nojobs",
        "TaskProlog": "/bin/true",
    }
    spec = ClusterSpec.model_validate(
        {
            "name": "demo",
            "target": "local",
            "groups": {"gpu": {"count": 1}},
            "software": {"slurm": release},
            "slurm": {"extra": extra},
        }
    )
    inventory = Inventory(cluster="demo", target="local", nodes=(controller, node))
    files = render_files(inventory, spec, cgroup="none", db_password="none")
    text = {path: file.content for path, file in files.items()} | {"/etc/muster/epilog": render_epilog(gpus=False)}
    for path, content in text.items():
        target = folder / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(content)
    (folder / "etc/slurm/slurm.key").write_bytes(bytes(range(1, 33)))


@pytest.mark.attack(3)
def test_jobs_have_private_folders(node: Container) -> None:
    write = "umask 0; touch /tmp/secret /var/tmp/secret /dev/shm/secret; sleep 600"
    run(node, "alice", f"sbatch -n1 -o /dev/null --wrap '{write}'")
    shown = "for folder in /tmp /var/tmp /dev/shm; do ls -A $folder; done"
    own = f"srun --jobid=$(squeue -h -o %A) --overlap bash -c '{shown}'"
    wait_until(lambda: run(node, "alice", own).split() == ["secret"] * 3, "the job has written its files")
    assert run(node, "carol", f"srun -n1 bash -c '{shown}; echo looked'") == "looked"
    run(node, "alice", "scancel -u alice")
    wait_until(lambda: run(node, "alice", "squeue -h") == "", "the job has ended")
    assert run(node, "root", "find /var/lib/slurm/private -name secret") == ""


@pytest.mark.attack(5)
@pytest.mark.parametrize("command", ["srun -n1 id -un", "sbatch --wrap 'id -un'", "salloc -n1 id -un"])
def test_root_cannot_run_jobs(node: Container, command: str) -> None:
    """Whoever is root on one node is not root on all of them by asking Slurm for a job."""
    out = run(node, "root", f"{command} 2>&1")
    assert "Invalid user id" in out, out
    assert "root" not in out.split()
    assert run(node, "carol", command.replace("--wrap", "-o /dev/null --wait --wrap")) != ""


@pytest.mark.attack(3)
def test_a_detached_process_is_killed_when_the_last_job_of_its_user_ends(node: Container) -> None:
    wait = "touch ~/started; until [ -e ~/end ]; do sleep 0.1; done"
    run(node, "alice", f"sbatch -n1 -o /dev/null --wrap '{wait}'")
    wait_until(lambda: run(node, "alice", "ls ~/started 2>/dev/null") != "", "a job of alice's runs")
    run(node, "alice", f"srun -n1 bash -c '{LEAVE}'")
    wait_until(lambda: run(node, "alice", "squeue -h -o %T") == "RUNNING", "the second job has ended")
    assert run(node, "root", COUNT) == "1", "another job of the user still runs"
    run(node, "carol", f"sbatch -n1 -o /dev/null --wrap '{wait}'")
    wait_until(lambda: run(node, "carol", "ls ~/started 2>/dev/null") != "", "a job of carol's runs")
    run(node, "alice", "touch ~/end")
    wait_until(lambda: run(node, "root", COUNT) == "0", "the process is killed")
    assert run(node, "carol", "squeue -h -o %T") == "RUNNING", "jobs of others are left alone"
    run(node, "carol", "touch ~/end")
    wait_until(lambda: run(node, "root", "sinfo -h -o %T") == "idle", "no epilog has drained the node")
