"""A Slurm cluster with as many nodes as wanted in one container: a slurmd for each, with muster's own configuration.

Each slurmd has its own name, folders and loopback address. What differs from a cluster's configuration is in CHANGES.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bootstrap.steps.accounting import MARIADB_CONF, MARIADB_SETTINGS
from bootstrap.transport.base import Completed
from cluster import names
from cluster.inventory import Inventory, Node
from cluster.spec import ClusterSpec
from infra.targets.local.build.node_container import UNCONFINED
from slurm.config.render import render_files
from slurm.control import accounting

GROUP, ACCOUNT, USER = "gpu", "muster", "alice"
NAME = "scale"
SCRIPT = Path(__file__).with_name("scale.sh")
CPUS, MEMORY_MB = 8, 16384
_PASSWORD = "scale"  # noqa: S105  # of a database that is removed with the container
_KEY = bytes(range(1, 33))
_TIMEOUT_S = 600.0
# For own names and folders of each slurmd, to bind tasks to cores, and for an address.
_CAPABILITIES = ("SYS_ADMIN", "SYS_NICE", "NET_ADMIN")
# A sixteenth of the usual: whatever else runs on this machine goes first.
_CPU_SHARES = "64"
# Programs that run on each node: a thousand of them at once would measure the two cores of this machine.
_PROGRAMS = ("health", "epilog", "task-prolog")
CHANGES = {
    "CommunicationParameters": "every slurmd listens on its own address",
    "NamespaceType": "the folders of jobs would be those of other nodes",
}
"""Settings that differ from muster's, with the reason; the programs of nodes do nothing."""


@dataclass(frozen=True)
class Answer(Completed):
    """The result of a script, and how long it took."""

    seconds: float = 0.0


@dataclass(frozen=True)
class EmulatedCluster:
    """The container."""

    container: str
    inventory: Inventory

    @property
    def nodes(self) -> list[str]:
        return [node.name for node in self.inventory.compute]

    def run(self, script: str, *, timeout: float = _TIMEOUT_S) -> Answer:
        """Run a script as root on the controller."""
        began = time.monotonic()
        done = subprocess.run(
            ["docker", "exec", "-i", self.container, "bash", "-s"],
            input=script, text=True, capture_output=True, timeout=timeout, check=False,
        )  # fmt: skip
        return Answer(done.returncode, done.stdout, done.stderr, time.monotonic() - began)

    def call(self, *arguments: object, timeout: float = _TIMEOUT_S) -> Answer:
        """Run a part of scale.sh; raise RuntimeError if it fails."""
        answer = self.run(" ".join(["/muster/scale.sh", *map(str, arguments)]), timeout=timeout)
        if answer.code:
            raise RuntimeError(f"scale.sh {arguments[0]} exited with {answer.code}: {answer.err.strip()[-2000:]}")
        return answer

    def close(self) -> None:
        """Do nothing: every script is a process of its own."""


@contextmanager
def emulated_cluster(count: int, image: str) -> Iterator[EmulatedCluster]:
    """Start the daemons of the controller and a slurmd for each node; remove the container when the block ends."""
    inventory = make_inventory(count)
    name = f"muster-{NAME}-{os.getpid():x}"
    with tempfile.TemporaryDirectory() as folder:
        write_files(Path(folder), inventory)
        options = [
            "--detach", "--init", "--name", name, "--hostname", "controller", "--network", "none",
            "--label", f"{names.CLUSTER}={name}", *(f"--cap-add={capability}" for capability in _CAPABILITIES),
            *(f"--security-opt={option}" for option in UNCONFINED),
            "--cpu-shares", _CPU_SHARES, "--volume", f"{folder}:/muster:ro", "--entrypoint", "sleep",
        ]  # fmt: skip
        subprocess.run(["docker", "run", *options, image, "infinity"], check=True, stdout=subprocess.DEVNULL)
        try:
            cluster = EmulatedCluster(name, inventory)
            cluster.call("controller")
            yield cluster
        finally:
            subprocess.run(["docker", "rm", "--force", name], check=False, stdout=subprocess.DEVNULL)


def make_inventory(count: int) -> Inventory:
    """Return a controller and equal nodes of one group, each with an address of the loopback network."""
    controller = Node(
        name="controller", role="controller", address="127.0.0.1", host_key="", machine_id="", cpus=2, memory_mb=4096
    )
    nodes = (
        Node(
            name=names.member(GROUP, number), role="compute", group=GROUP, address=choose_address(number),
            host_key="", machine_id="", cpus=CPUS, memory_mb=MEMORY_MB,
        )
        for number in range(1, count + 1)
    )  # fmt: skip
    return Inventory(cluster=NAME, target="local", nodes=(controller, *nodes))


def choose_address(number: int) -> str:
    """Return the loopback address of a node."""
    return f"127.1.{number // 250}.{number % 250 + 1}"


def write_files(folder: Path, inventory: Inventory) -> None:
    """Write what the container needs: /etc, the names of the nodes, and the accounting database."""
    spec = ClusterSpec.model_validate({"name": NAME, "target": "local", "groups": {GROUP: {"count": 1}}})
    rendered = render_files(inventory, spec, cgroup="none", db_password=_PASSWORD)
    text = {path: file.content for path, file in rendered.items()}
    text["/etc/slurm/slurm.conf"] = change_conf(text["/etc/slurm/slurm.conf"])
    text[MARIADB_CONF] = MARIADB_SETTINGS
    text |= {f"/etc/muster/{program}": "#!/bin/sh\nexit 0\n" for program in _PROGRAMS}
    text["/hosts"] = "0.0.0.0 any-address\n" + "".join(f"{node.address} {node.name}\n" for node in inventory.nodes)
    text["/accounting.sql"] = (
        "create database if not exists slurm_acct_db;\n"
        f"create or replace user slurm@localhost identified by '{_PASSWORD}';\n"
        "grant all on slurm_acct_db.* to slurm@localhost;\n"
    )
    changes = [*accounting.add_account(NAME, ACCOUNT), accounting.add_users(NAME, ACCOUNT, [USER])]
    text["/accounts.sh"] = accounting.run_all(changes)
    text["/scale.sh"] = SCRIPT.read_text(encoding="utf-8")
    for path, content in text.items():
        target = folder / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(content)
        target.chmod(0o755)
    (folder / "etc/slurm/slurm.key").write_bytes(_KEY)
    folder.chmod(0o755)


def change_conf(conf: str) -> str:
    """Return a slurm.conf with which many slurmd run on one machine."""
    conf = re.sub("^(JobContainerType|NamespaceType)=.*\n", "", conf, flags=re.MULTILINE)
    if "CommunicationParameters=" not in conf:
        return conf.replace("MpiDefault=", "CommunicationParameters=NoInAddrAny\nMpiDefault=", 1)
    return re.sub("^(CommunicationParameters=.*)$", r"\1,NoInAddrAny", conf, flags=re.MULTILINE)
