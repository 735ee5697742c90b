"""A machine on which everything is there; tests take parts away."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from setup.engine import Engine
from setup.facts import Disk, Facts

ALL = frozenset({"venv", "pulumi", "docker", "image", "env"})

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
    return replace(READY, **changes)


def one_disk(free_gb: float) -> dict[str, Disk]:
    places = {"system": "/", "repository": "/repo", "cache": "/cache", "engine": "/var/lib/docker"}
    return {place: Disk(path, 1, free_gb) for place, path in places.items()}
