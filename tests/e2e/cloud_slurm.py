"""A real slurmctld whose nodes are moto instances: each launched instance boots as a container.

The containers run daemons without systemd, because only the interplay of Slurm and the power programs is tested.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import docker
from docker.errors import APIError
from docker.models.containers import Container

from cluster.inventory import Inventory, Node, NodeSet
from cluster.spec import ClusterSpec
from infra.targets.aws.launcher.fleet import Fleet
from infra.targets.aws.node.set_up import LAUNCHER
from slurm.config.render import render_files
from slurm.power import install
from tests.container_script import BASH, run_script
from tests.e2e.daemon_container import daemon_network, start_container
from tests.harness import REPO, wait_until
from tests.moto_server import ENVIRONMENT, Moto, listening

CLUSTER = f"power-{os.getpid():x}"
KEY = bytes(range(1, 33))
RESUME_S = 600


class CloudSlurm:
    """The controller of the cluster; `boot` and `end` act as EC2 would on an instance."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.controller = self._start("controller", "slurmctld -D")

    def run(self, script: str, *, check: bool = True) -> str:
        """Run a script on the controller and return its output."""
        try:
            done = run_script(self.controller, script, shell=BASH)
        except APIError as ended:
            raise AssertionError(f"slurmctld ended\n{self.log()}") from ended
        if check and done.code:
            raise AssertionError(f"{script}\nexited {done.code}\n{done.out}\n{self.log()}")
        return done.out.strip()

    def sweep(self) -> None:
        self.run("/etc/muster/power/sweep")

    def node(self, name: str) -> str:
        """Return the state of a node as slurmctld prints it."""
        return self.run(f"scontrol show node {name} --oneliner | grep -o ' State=[^ ]*' | cut -d= -f2")

    def boot(self, name: str) -> Container:
        return self._start(name, f"slurmd -D -b -N {name} --conf-server controller:6817")

    def end(self, name: str) -> None:
        docker.from_env().containers.get(f"muster-{CLUSTER}-{name}").remove(force=True)

    def log(self) -> str:
        return self.controller.logs(tail=60).decode()

    def _start(self, name: str, daemon: str) -> Container:
        """Start a container with the prepared /etc: Slurm's files on the controller only, the key on all nodes."""
        prepare = (
            "cp -r /muster/etc/. /etc/ && chown -R slurm:slurm /etc/slurm && chmod 600 /etc/slurm/slurm.key"
            " && mkdir -p /var/lib/muster/power /var/log/slurm /run/slurm /var/lib/slurm/slurmctld"
            " && chown -R slurm:slurm /var/lib/muster /var/log/slurm /var/lib/slurm"
        )
        # slurmd 26.05 requires that root owns the folder; slurmctld runs as another user.
        own = " && chown slurm:slurm /run/slurm" if name == "controller" else " && rm -f /etc/slurm/*.conf"
        folders = {self.folder: "/muster", REPO: "/repo", sys.base_prefix: "/python"}
        return start_container(CLUSTER, name, f"{prepare}{own} && exec {daemon}", folders)


@contextmanager
def cloud_slurm(moto: Moto, fleet: Fleet, sets: tuple[NodeSet, ...], folder: Path) -> Iterator[CloudSlurm]:
    """Run a controller for these node sets until the block ends."""
    with daemon_network(CLUSTER) as network:
        network.reload()
        gateway = network.attrs["IPAM"]["Config"][0]["Gateway"]
        # Containers reach this machine at the gateway of their network, not on loopback.
        with listening(moto, gateway) as url:
            _write_files(folder, fleet, sets, url)
            slurm = CloudSlurm(folder)
            wait_until(lambda: "UP" in slurm.run("scontrol ping", check=False), "slurmctld answers")
            yield slurm


def _write_files(folder: Path, fleet: Fleet, sets: tuple[NodeSet, ...], endpoint: str) -> None:
    controller = Node(
        name="controller", role="controller", address="controller", host_key="", machine_id="", cpus=1, memory_mb=1024
    )
    inventory = Inventory(cluster="demo", target="aws", nodes=(controller,), sets=sets)
    spec = ClusterSpec.model_validate(
        {
            "name": "demo",
            "target": "aws",
            "groups": {node_set.group: {"min": node_set.static, "max": node_set.count} for node_set in sets},
            "slurm": {
                "suspend_s": 3600,
                "resume_s": RESUME_S,
                "slurmd_timeout_s": 30,
                # There is no accounting database here, and a short SuspendTimeout keeps the test fast.
                "extra": {
                    "AccountingStorageType": "accounting_storage/none",
                    "AccountingStorageEnforce": "nojobs",
                    # Nor are there users.
                    "DisableRootJobs": "NO",
                    "SuspendTimeout": "5",
                    "TaskProlog": "/bin/true",
                    "Epilog": "/bin/true",
                },
            },
        }
    )
    files = render_files(inventory, spec, cgroup="none", db_password="none")
    text = {path: file.content for path, file in files.items()}
    site = next(Path(sys.prefix).glob("lib/python3*/site-packages")).relative_to(REPO)
    environment = {**ENVIRONMENT, "AWS_ENDPOINT_URL": endpoint, "PYTHONPATH": f"/repo:/repo/{site}"}
    variables = " ".join(f"{key}={value}" for key, value in environment.items())
    python = f"env LD_LIBRARY_PATH=/python/lib {variables} /python/bin/{Path(sys.executable).resolve().name}"
    text |= install.write_scripts(python, "/repo", LAUNCHER, RESUME_S)
    text["/etc/muster/power/sweep"] = text[install.RESUME].replace(f"{LAUNCHER} resume", f"{LAUNCHER} sweep")
    text[install.FLEET] = fleet.model_dump_json()
    for path, content in text.items():
        target = folder / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(content)
        target.chmod(0o755 if path.startswith(install.FOLDER) else 0o644)
    (folder / "etc/slurm/slurm.key").write_bytes(KEY)
