"""Machines of servers that stand in for clouds: containers with systemd and sshd that apply their user data."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import docker

from bootstrap.transport.base import Transport
from cluster import names
from infra.resources.ssh_key import SshKey
from infra.targets.local.build.node_container import archive_keys
from infra.targets.local.upgrade import MachineArgs, open_machine
from tests.e2e.bare_machines import SLURM


@dataclass(frozen=True)
class _Machine:
    container: str
    transport: Transport
    running: ExitStack


class CloudMachines:
    """Containers by the id of their machine. Shared filesystems are volumes, which Docker mounts."""

    def __init__(self, cluster: str, stack: str) -> None:
        self._cluster, self._stack = cluster, stack
        self._machines: dict[str, _Machine] = {}

    def create(self, id_: str, host: str) -> str:
        """Start a machine that nobody can log in to yet; return its address."""
        volume = names.volume(self._cluster, "shared")
        docker.from_env().volumes.create(volume, labels={names.CLUSTER: self._cluster})
        mounts: tuple[dict[str, str | bool], ...] = (
            {"volume": volume, "target": "/shared"},
            {"volume": names.ENV_CACHE_VOLUME, "target": "/shared/env", "read_only": host != names.CONTROLLER},
        )
        image = names.image(SLURM)
        args = MachineArgs(self._cluster, self._stack, host, image, 1, 1536, name=host, network="bridge", mounts=mounts)
        running = ExitStack()
        transport = running.enter_context(open_machine(args))
        self._machines[id_] = _Machine(names.container(self._cluster, host), transport, running)
        container = docker.from_env().containers.get(names.container(self._cluster, host))
        return str(container.attrs["NetworkSettings"]["Networks"]["bridge"]["IPAddress"])

    def boot(self, id_: str, authorized_key: str, host_key: SshKey, commands: Sequence[Sequence[str]]) -> None:
        """Let a key log in as root, give the machine its host key, and run commands as its first boot would."""
        machine = self._machines[id_]
        container = docker.from_env().containers.get(machine.container)
        container.put_archive("/", archive_keys(authorized_key, host_key.private, host_key.public))
        for command in commands:
            done = container.exec_run(list(command))
            assert done.exit_code == 0, done.output
        assert machine.transport.run("systemctl restart ssh").code == 0

    def run(self, id_: str, script: str) -> str:
        """Run a script as root and return what it prints."""
        return self._machines[id_].transport.run(script).out

    def stop(self, id_: str) -> None:
        """Remove a machine."""
        self._machines.pop(id_).running.close()

    def close(self) -> None:
        """Remove all machines and their shared filesystem."""
        with ExitStack() as removals:
            removals.callback(self._remove_volume)
            # One that fails does not keep the others.
            for machine in self._machines.values():
                removals.push(machine.running)

    def _remove_volume(self) -> None:
        for volume in docker.from_env().volumes.list(filters={"name": names.volume(self._cluster, "shared")}):
            volume.remove(force=True)
