"""Instances of the server that stands in for Nebius."""

from __future__ import annotations

from typing import Any

import yaml

from infra.resources.ssh_key import SshKey
from tests.e2e.cloud_machines import CloudMachines

Message = dict[str, Any]


class NebiusMachines:
    """Instances as containers."""

    def __init__(self, machines: CloudMachines) -> None:
        self._machines = machines

    def start(self, instance: Message) -> tuple[str, str]:
        """Start a machine as its user data says; its private address is its public one, too."""
        config = yaml.safe_load(instance["spec"]["cloudInitUserData"])
        id_, keys = instance["metadata"]["id"], config["ssh_keys"]
        address = self._machines.create(id_, config["hostname"])
        host_key = SshKey(keys["ed25519_private"], keys["ed25519_public"])
        self._machines.boot(id_, config["ssh_authorized_keys"][0], host_key, config["runcmd"])
        return address, address

    def stop(self, instance: Message) -> None:
        """Remove the machine of an instance."""
        self._machines.stop(instance["metadata"]["id"])
