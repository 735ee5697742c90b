"""Virtual machines of the server that stands in for Azure."""

from __future__ import annotations

from base64 import b64decode

import yaml

from infra.resources import ssh_key
from tests.e2e.cloud_machines import CloudMachines

FORGET_NAME = """umount /etc/hostname && cat /proc/sys/kernel/hostname >/etc/hostname
others=$(grep -v "$(cat /etc/hostname)" /etc/hosts); echo "$others" >/etc/hosts"""


class AzureMachines:
    """Virtual machines as containers; each generates its host key when it boots."""

    def __init__(self, machines: CloudMachines) -> None:
        self._machines = machines

    def place(self, id_: str, host: str) -> str:
        return self._machines.create(id_, host)

    def boot(self, id_: str, user_data: str) -> None:
        # Docker mounts the file, so that bootstrap could not give the instance of a scale set its node's name, and
        # knows the machine's address by its first name.
        self._machines.run(id_, FORGET_NAME)
        config = yaml.safe_load(b64decode(user_data))
        key = ssh_key.generate("root@machine")
        self._machines.boot(id_, config["ssh_authorized_keys"][0], key, config["runcmd"])

    def run(self, id_: str, script: str) -> str:
        return self._machines.run(id_, script)

    def stop(self, id_: str) -> None:
        self._machines.stop(id_)
