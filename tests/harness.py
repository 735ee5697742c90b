"""A stack under test: its own home and stack file, the real `muster` command, and clean-up by label."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import docker
import yaml
from docker.models.containers import Container

REPO = Path(__file__).resolve().parent.parent
Spec = dict[str, Any]
# Pause between two checks of a condition: a multiple of the time that a check takes, or a share of the time that was
# waited already if that is longer; between two limits.
PAUSE_PER_CHECK, PAUSE_PER_WAIT, SHORTEST_PAUSE_S, LONGEST_PAUSE_S = 2.0, 0.05, 0.1, 1.0
# The keys that OpenSSH 9 exchanges by default take 0.15 s of processor time, ten times as much as all else in `ssh`.
QUICK_KEYS = ("-o", "KexAlgorithms=curve25519-sha256")


def small_spec(**changes: Any) -> Spec:
    """Return a spec of two nodes with two simulated GPUs each and no network egress; `make_stack` names it.

    MUSTER_TEST_SLURM runs the same tests on another release of Slurm than the default.
    """
    slurm = os.environ.get("MUSTER_TEST_SLURM")
    spec: Spec = {
        "target": "local",
        "groups": {"gpu": {"count": 2, "gpus": {"count": 2, "kind": "simulated", "type": "h100"}}},
        "network": {"egress": False},
        "storage": {"shared": {"keep": False}},
    }
    return spec | ({"software": {"slurm": slurm}} if slurm else {}) | changes


@dataclass
class Stack:
    """One stack; a test may change `spec` between two calls of `up`."""

    name: str
    home: Path
    spec: Spec
    env: dict[str, str] = field(default_factory=dict)

    def muster(self, *args: str, timeout: float = 600, check: bool = True) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            self.command(*args), env=self.environment(), cwd=REPO, text=True, capture_output=True, timeout=timeout
        )
        if check and done.returncode != 0:
            raise AssertionError(f"muster {' '.join(args)} exited {done.returncode}\n{done.stdout}\n{done.stderr}")
        return done

    def start(self, *args: str) -> subprocess.Popen[str]:
        """Start the command in its own session, so that a test can kill it with everything it started."""
        log = (self.home / "started.log").open("w")
        return subprocess.Popen(
            self.command(*args),
            env=self.environment(),
            cwd=REPO,
            text=True,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )

    def up(self, *args: str, check: bool = True, timeout: float = 600) -> subprocess.CompletedProcess[str]:
        return self.muster("up", *args, check=check, timeout=timeout)

    def ssh(self, node: str, script: str, *, user: str | None = None, check: bool = True) -> str:
        """Run a script on a node over the cluster's own SSH access and return its output."""
        config = self.home / self.name / "ssh_config"
        as_user = ["-l", user] if user else []
        done = subprocess.run(
            ["ssh", "-F", str(config), *QUICK_KEYS, *as_user, node, "bash", "-s"],
            input=script,
            text=True,
            capture_output=True,
            timeout=600,
        )
        if check and done.returncode != 0:
            raise AssertionError(f"on {node}: {script}\nexited {done.returncode}\n{done.stdout}\n{done.stderr}")
        return done.stdout.strip()

    def command(self, *args: str) -> list[str]:
        """Return the command line of a command such as `up` or `rotate keys`, with its options."""
        return [sys.executable, "-m", "muster.cli", *args[0].split(), "--stack", self.name, *args[1:]]

    def environment(self) -> dict[str, str]:
        stacks = self.home / "stacks"
        stacks.mkdir(parents=True, exist_ok=True)
        (stacks / f"Pulumi.{self.name}.yaml").write_text(yaml.safe_dump({"config": {"muster:cluster": self.spec}}))
        return {**os.environ, "MUSTER_HOME": str(self.home), "MUSTER_STACKS": str(stacks), "COLUMNS": "120", **self.env}

    def container(self, node: str) -> Container:
        return docker.from_env().containers.get(f"muster-{self.cluster}-{node}")

    @property
    def cluster(self) -> str:
        name: str = self.spec["name"]
        return name

    @property
    def entry(self) -> str:
        """Return the node where users log in: the controller if there is no login node."""
        return "login" if self.spec.get("login", {}).get("enabled", True) else "controller"

    @property
    def inventory(self) -> dict[str, Any]:
        loaded: dict[str, Any] = json.loads((self.home / self.name / "inventory.json").read_text())
        return loaded

    def machine_ids(self) -> dict[str, str]:
        return {node["name"]: node["machine_id"] for node in self.inventory["nodes"]}

    def exists(self) -> list[str]:
        """Return the names of everything on the Docker engine that carries this cluster's label."""
        return existing(self.cluster)

    def remove(self) -> None:
        """Remove everything by label, whatever state the stack is in."""
        client, label = docker.from_env(), {"label": f"muster.cluster={self.cluster}"}
        for container in client.containers.list(all=True, filters=label, ignore_removed=True):
            container.remove(force=True, v=True)
        for network in client.networks.list(filters=label):
            network.remove()
        for volume in client.volumes.list(filters=label):
            volume.remove(force=True)


def existing(cluster: str) -> list[str]:
    """Return the names of containers, networks and volumes that carry the label of a cluster."""
    client, label = docker.from_env(), {"label": f"muster.cluster={cluster}"}
    names = [c.name for c in client.containers.list(all=True, filters=label, ignore_removed=True)]
    names += [n.name for n in client.networks.list(filters=label)]
    names += [v.name for v in client.volumes.list(filters=label)]
    return sorted(names)


def cut_off(head: str) -> str:
    """Return a script that blocks a node's connections to the rendezvous ports of `head`; `HEAL` undoes it."""
    return f"""nft add table inet fault
        nft add chain inet fault out '{{ type filter hook output priority 0; }}'
        nft add rule inet fault out ip daddr {head} tcp dport 20000-65535 drop"""


HEAL = "nft delete table inet fault"


def wait_until(met: Callable[[], bool], what: str, seconds: float = 240) -> None:
    """Wait until `met` returns true; fail with `what` after `seconds`.

    Most conditions log in to a node: without a pause they would take the processor from what they wait for.
    """
    started = time.monotonic()
    while True:
        began = time.monotonic()
        if met():
            return
        ended = time.monotonic()
        if ended > started + seconds:
            raise AssertionError(f"not within {seconds:g} s: {what}")
        pause_s = max(PAUSE_PER_CHECK * (ended - began), PAUSE_PER_WAIT * (ended - started))
        time.sleep(min(max(SHORTEST_PAUSE_S, pause_s), LONGEST_PAUSE_S))
