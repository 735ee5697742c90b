"""The bundle that every node fetches: our code, wheels, and what is known of this cluster before a machine runs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from bootstrap.bundle import pack_node
from bootstrap.wheels import Architecture, fetch_wheels
from infra.home import Home, private_folder

# What runs on this target's machines, besides what runs on every node. Their packages have no `__init__` there.
NODE_FOLDERS = ("infra/targets/aws/node", "infra/targets/aws/launcher")
_ARCHITECTURES: Mapping[str, Architecture] = {"x86_64": "x86_64", "arm64": "aarch64"}


@dataclass(frozen=True)
class Packed:
    digest: str
    sha256: str
    path: str


def pack(stack: str, architecture: str, cluster_files: Mapping[str, str]) -> Packed:
    """Written beside the stack's other files; the one before it is no longer of use there."""
    home = Home.of(os.environ)
    content = {name: text.encode() for name, text in cluster_files.items()}
    bundle = pack_node(
        home.repo, fetch_wheels(home.repo, home.cache, _ARCHITECTURES[architecture]), content, NODE_FOLDERS
    )
    folder = private_folder(home.stack(stack).folder) / "bundles"
    folder.mkdir(exist_ok=True)
    path = folder / f"{bundle.digest}.tar"
    for old in folder.glob("*.tar"):
        if old != path:
            old.unlink(missing_ok=True)
    _write(path, bundle.archive)
    return Packed(bundle.digest, bundle.sha256, str(path))


def _write(path: Path, data: bytes) -> None:
    """Whole or not at all: the engine reads it by its name."""
    new = path.with_suffix(f".{os.getpid()}")
    new.write_bytes(data)
    new.replace(path)
