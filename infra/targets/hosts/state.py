"""What a stack's Pulumi state says about its hosts, and who owns them."""

from __future__ import annotations

import json
import socket
from hashlib import sha256
from pathlib import Path
from typing import Any

from bootstrap.transport.host_login import HostLogin
from cluster import names
from infra.home import StackHome
from infra.targets.hosts.claim import Owner, hash_key
from infra.targets.hosts.login import parse_login

_HOST_RESOURCE = "muster:Host"
_MACHINE_ID = Path("/etc/machine-id")


def read_logins(state: Path) -> dict[str, HostLogin]:
    """Return the logins of the hosts in a state, by name; nothing if it cannot be read."""
    try:
        return {host["host"]: parse_login(host["login"]) for host in _read_hosts(state)}
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}


def read_cluster(state: Path) -> str:
    """Return the cluster of the hosts in a state; empty if it has none."""
    return next((str(host["cluster"]) for host in _read_hosts(state) if host.get("cluster")), "")


def identify_owner(cluster: str, stack: StackHome, public_key: str = "") -> Owner:
    """Return who owns a stack's cluster; without its public key, that of the hosts in its state counts."""
    keys = (host.get("ssh_public_key") for host in _read_hosts(stack.state))
    key = public_key or next((key for key in keys if isinstance(key, str)), "")
    home = names.home_labels(stack.home.root)[names.HOME]
    return Owner(cluster, stack.name, home, _identify_machine(), hash_key(key))


def _read_hosts(state: Path) -> list[dict[str, Any]]:
    try:
        resources = json.loads(state.read_text())["checkpoint"]["latest"].get("resources") or []
        return [entry["outputs"] for entry in resources if entry.get("type", "").endswith(_HOST_RESOURCE)]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return []


def _identify_machine() -> str:
    """Return a digest of this machine's id, which others must not learn."""
    try:
        text = _MACHINE_ID.read_text().strip() or socket.gethostname()
    except OSError:  # a container may have none
        text = socket.gethostname()
    return sha256(f"muster {text}".encode()).hexdigest()[:12]
