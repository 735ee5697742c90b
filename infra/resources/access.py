"""The files for access to a cluster: inventory, key, known_hosts and ssh_config under MUSTER_HOME/<stack>."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from cluster.inventory import Inventory, Node
from cluster.spec import ClusterSpec

Files = dict[str, tuple[str, int]]
_SSH_PORT = 22


def files(folder: Path, inventory: Inventory, spec: ClusterSpec, private_key: str) -> Files:
    """Return the content and mode of each file, by name."""
    return {
        "inventory.json": (inventory.model_dump_json(indent=2) + "\n", 0o644),
        "id_ed25519": (private_key.rstrip("\n") + "\n", 0o600),
        "known_hosts": ("".join(_known_host(n) for n in inventory.nodes), 0o644),
        "ssh_config": ("\n".join(_hosts(folder, inventory, spec)) + "\n", 0o644),
    }


def write(folder: Path, contents: Files) -> None:
    """Write each file atomically, and the key without ever making it readable by others."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    for name, (content, mode) in contents.items():
        new = folder / f".{name}.{os.getpid()}"
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "w", encoding="utf-8") as file:
            file.write(content)
        new.chmod(mode)
        new.replace(folder / name)


def stale(folder: Path, contents: Files) -> list[str]:
    """Return the files that are missing or differ."""
    return [name for name, (content, mode) in contents.items() if not _same(folder / name, content, mode)]


def _same(path: Path, content: str, mode: int) -> bool:
    try:
        return path.read_text(encoding="utf-8") == content and path.stat().st_mode & 0o777 == mode
    except OSError:
        return False


def _known_host(node: Node) -> str:
    address = node.login_address if node.ssh_port == _SSH_PORT else f"[{node.login_address}]:{node.ssh_port}"
    return f"{node.name},{address} {node.host_key}\n"


def _hosts(folder: Path, inventory: Inventory, spec: ClusterSpec) -> Iterator[str]:
    user = next(iter(spec.users), "root")
    # Users reach compute nodes only through a job there, and only admins the controller.
    restricted = user in spec.users and not spec.users[user].admin
    for node in inventory.nodes:
        yield f"Host {node.name}"
        yield f"  HostName {node.login_address}"
        yield f"  Port {node.ssh_port}"
        if restricted and node != inventory.login:
            yield f"  User {node.ssh_user}"
    for launched in inventory.sets:
        if restricted:
            yield f"Host {launched.group}-*"
            yield "  User root"
    yield "Host *"
    yield f"  User {user}"
    yield f'  IdentityFile "{folder / "id_ed25519"}"'
    yield "  IdentitiesOnly yes"
    yield f'  UserKnownHostsFile "{folder / "known_hosts"}"'
    yield "  StrictHostKeyChecking yes"
    yield "  ServerAliveInterval 15"
