"""The running cluster's job queue, asked over SSH with the access files of its stack."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from docker.errors import APIError

from bootstrap.transport.ssh import SshTransport
from infra.home import Home
from infra.inventory import Inventory
from infra.plan import names
from infra.providers import engine_client
from infra.providers.problem import Problem
from infra.spec import ClusterSpec

_ASK_S = 30.0
_DAEMON = "slurmctld"

# Nodes that Slurm does not know (a login node, one that never joined) have no jobs and cannot be drained.
_KNOWN = """set -e
for node in {nodes}; do sinfo -h -N -o %N | grep -qx "$node" && known="$known $node"; done
[ -n "$known" ] || exit 0
"""
_JOBS = """for node in $known; do
  for job in $(squeue -h -t R,S,CF -w "$node" -o %i); do echo "$node $job"; done
done"""
_DRAIN = 'scontrol update nodename="$(echo $known | tr " " ,)" state=drain reason="muster: leaving"'
_RESUME = 'scontrol update nodename="$(echo $known | tr " " ,)" state=resume'


class JobQueue(Protocol):
    def jobs(self, nodes: Sequence[str]) -> dict[str, list[str]]:
        """Those of the nodes that run jobs, and the jobs' ids."""
        ...

    def drain(self, nodes: Sequence[str]) -> None: ...

    def resume(self, nodes: Sequence[str]) -> None: ...


def queue_of(spec: ClusterSpec, stack: str) -> JobQueue:
    """The queue of the cluster that `spec` made, as far as it can be asked."""
    folder = Home.of(os.environ).stack(stack).folder
    if not _runs(spec):
        return NoQueue()
    try:
        inventory = Inventory.model_validate_json((folder / "inventory.json").read_text())
        return SlurmQueue(inventory, (folder / "id_ed25519").read_text())
    except FileNotFoundError as missing:
        return UnknownQueue(Path(missing.filename))


class SlurmQueue:
    def __init__(self, inventory: Inventory, private_key: str) -> None:
        self._inventory = inventory
        self._private_key = private_key

    def jobs(self, nodes: Sequence[str]) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for line in self._run(nodes, _JOBS).splitlines():
            node, job = line.split()
            found.setdefault(node, []).append(job)
        return found

    def drain(self, nodes: Sequence[str]) -> None:
        self._run(nodes, _DRAIN)

    def resume(self, nodes: Sequence[str]) -> None:
        self._run(nodes, _RESUME)

    def _run(self, nodes: Sequence[str], script: str) -> str:
        controller = self._inventory.controller
        transport = SshTransport.connect(controller, self._private_key, deadline_s=_ASK_S)
        try:
            done = transport.run(_KNOWN.format(nodes=shlex.join(nodes)) + script, timeout=_ASK_S)
        finally:
            transport.close()
        if done.code != 0:
            raise Problem(
                "controller",
                f"the job queue does not answer: {done.err.strip()}",
                "look with `make status`, or use `FORCE=1`",
            )
        return done.out


class NoQueue:
    """No slurmctld runs, so nothing can be asked and nothing new is started."""

    def jobs(self, _nodes: Sequence[str]) -> dict[str, list[str]]:
        return {}

    def drain(self, nodes: Sequence[str]) -> None: ...

    def resume(self, nodes: Sequence[str]) -> None: ...


class UnknownQueue:
    """slurmctld runs, but this machine has no key for it: nobody can say that its nodes are idle."""

    def __init__(self, missing: Path) -> None:
        self._missing = missing

    def jobs(self, nodes: Sequence[str]) -> dict[str, list[str]]:
        raise Problem(
            "groups",
            f"whether jobs run on {', '.join(nodes)} cannot be asked: {self._missing} is missing",
            "if they are idle, run it with `FORCE=1`",
        )

    def drain(self, nodes: Sequence[str]) -> None:
        print(f"warning: {', '.join(nodes)} cannot be drained: {self._missing} is missing", file=sys.stderr)

    def resume(self, nodes: Sequence[str]) -> None: ...


def _runs(spec: ClusterSpec) -> bool:
    with engine_client.asking("controller") as api:
        try:
            processes = api.top(names.container(spec.name, names.CONTROLLER))["Processes"]
        except APIError:  # no such container, or it does not run
            return False
    return any(_DAEMON in field for process in processes for field in process)
