"""Instances of the server that stands in for Nebius: containers with systemd and sshd that apply their user data."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import docker
import yaml

from cluster import names
from infra.targets.local.build.node_container import archive_keys
from infra.targets.local.upgrade import MachineArgs, open_machine
from tests.e2e.bare_machines import SLURM

Message = dict[str, Any]


class ContainerMachines:
    """Containers by the id of their instance. Shared filesystems are volumes, which Docker mounts."""

    def __init__(self, cluster: str) -> None:
        self._cluster = cluster
        self._running: dict[str, ExitStack] = {}

    def start(self, instance: Message) -> tuple[str, str]:
        """Start a machine as its user data says; its private address is its public one, too."""
        config = yaml.safe_load(instance["spec"]["cloudInitUserData"])
        host = config["hostname"]
        volume = names.volume(self._cluster, "shared")
        labels = {names.CLUSTER: self._cluster}
        docker.from_env().volumes.create(volume, labels=labels)
        mounts: tuple[dict[str, str | bool], ...] = (
            {"volume": volume, "target": "/shared"},
            {"volume": names.ENV_CACHE_VOLUME, "target": "/shared/env", "read_only": host != names.CONTROLLER},
        )
        image = names.image(SLURM)
        args = MachineArgs(self._cluster, "nebius", host, image, 1, 1536, name=host, network="bridge", mounts=mounts)
        running = self._running[instance["metadata"]["id"]] = ExitStack()
        transport = running.enter_context(open_machine(args))
        container = docker.from_env().containers.get(names.container(self._cluster, host))
        keys = config["ssh_keys"]
        packed = archive_keys(config["ssh_authorized_keys"][0], keys["ed25519_private"], keys["ed25519_public"])
        container.put_archive("/", packed)
        for command in config["runcmd"]:
            done = container.exec_run(command)
            assert done.exit_code == 0, done.output
        assert transport.run("systemctl restart ssh").code == 0
        address = container.attrs["NetworkSettings"]["Networks"]["bridge"]["IPAddress"]
        return address, address

    def stop(self, instance: Message) -> None:
        """Remove the machine of an instance."""
        self._running.pop(instance["metadata"]["id"]).close()

    def close(self) -> None:
        """Remove all machines and their shared filesystem."""
        with ExitStack() as removals:
            removals.callback(self._remove_volume)
            # One that fails does not keep the others.
            for running in self._running.values():
                removals.push(running)

    def _remove_volume(self) -> None:
        for volume in docker.from_env().volumes.list(filters={"name": names.volume(self._cluster, "shared")}):
            volume.remove(force=True)
