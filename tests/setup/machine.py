"""The facts of a machine on which everything is installed; tests change some of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from setup.facts import Disk, Engine, Facts

ALL = frozenset({"venv", "pulumi", "docker", "image", "env", "slurm"})

READY = Facts(
    system="Linux",
    machine="x86_64",
    root=True,
    debian=True,
    distribution="Debian GNU/Linux 13 (trixie)",
    python="3.13",
    memory_mb=8000,
    engine=Engine("running"),
)


def machine(**changes: Any) -> Facts:
    """Return the ready machine with some facts changed."""
    return replace(READY, **changes)


def one_disk(free_gb: float) -> dict[str, Disk]:
    """Return disks for all places, on the same file system."""
    places = {"system": "/", "repository": "/repo", "cache": "/cache", "engine": "/var/lib/docker"}
    return {place: Disk(path, 1, free_gb) for place, path in places.items()}
