"""What the machines of the server that stands in for Azure are."""

from __future__ import annotations

from base64 import b64encode
from collections import Counter
from hashlib import sha256
from ipaddress import IPv4Network
from typing import Any, Protocol
from uuid import uuid4


class Machines(Protocol):
    """What virtual machines are, by the id of the instance of a scale set, or of the network interface."""

    def place(self, id_: str, host: str) -> str:
        """Give a machine its private address, before it boots."""
        ...

    def boot(self, id_: str, user_data: str) -> None:
        """Boot it with user data in Base64."""
        ...

    def run(self, id_: str, script: str) -> str:
        """Run a script as root and return what it prints."""
        ...

    def stop(self, id_: str) -> None:
        """Remove it."""
        ...


class NoMachines:
    """Machines that are only entries."""

    def __init__(self) -> None:
        self._addresses = IPv4Network("10.88.0.0/21").hosts()
        self._boots: Counter[str] = Counter()

    def place(self, id_: str, host: str) -> str:
        return str(next(self._addresses))

    def boot(self, id_: str, user_data: str) -> None:
        self._boots[id_.casefold()] += 1

    def run(self, id_: str, script: str) -> str:
        # Every machine generates its own key, another one with the same name, too.
        digest = sha256(f"{id_} {self._boots[id_.casefold()]}".casefold().encode()).digest()
        return f"ssh-ed25519 AAAA{b64encode(digest).decode()} root@host\n"

    def stop(self, id_: str) -> None:
        pass


def make_instance(id_: str, number: str) -> dict[str, Any]:
    """Return an instance of a scale set that is being created."""
    properties = {"provisioningState": "Creating", "vmId": str(uuid4()), "latestModelApplied": True}
    return {"id": id_, "instanceId": number, "properties": properties}


def set_power(machine: dict[str, Any], state: str) -> None:
    machine["properties"]["instanceView"] = {"statuses": [{"code": f"PowerState/{state}"}]}
