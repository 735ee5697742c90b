"""How to log in to a machine that exists already; host_connection.py opens the connection.

This module loads no SSH library: every command imports the rules of every target.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class HostLogin:
    """The address of a machine's SSH server, the user and key to log in with, and how its host key is recognized."""

    name: str
    address: str
    port: int = 22
    user: str = "root"
    identity_file: str | None = None
    """Private key on this machine; None for the keys of the SSH agent."""
    fingerprint: str | None = None
    """Fingerprint of the host key, `SHA256:...`; it takes precedence over `known_hosts`."""
    known_hosts: str | None = None
    trust_first_use: bool = False
    """Whether any host key is accepted if neither the fingerprint nor `known_hosts` has one for this address."""
    jump: HostLogin | None = None
    """The machine through which this one is reached."""

    @property
    def where(self) -> str:
        """The address as messages show it."""
        through = f" through {self.jump.name}" if self.jump else ""
        return f"{self.address}:{self.port}{through}"
