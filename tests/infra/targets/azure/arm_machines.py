"""What the machines of the server that stands in for Azure are."""

from __future__ import annotations

from ipaddress import IPv4Network
from typing import Protocol


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

    def place(self, id_: str, host: str) -> str:
        return str(next(self._addresses))

    def boot(self, id_: str, user_data: str) -> None:
        pass

    def run(self, id_: str, script: str) -> str:
        return f"ssh-ed25519 {'A' * 68} root@host\n"

    def stop(self, id_: str) -> None:
        pass
