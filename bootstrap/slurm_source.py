"""The pinned source of Slurm, for distributions without a release that fits; it brings its own packaging."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Source:
    version: str
    sha256: str
    addresses: tuple[str, ...]


# The archive of the release's tag; Debian carries the same file as the origin of its own packages of 24.11.5.
SOURCES = {
    "24.11": Source(
        "24.11.5",
        "e1a5547edd212c38b5e3230a284133f777b32746551f094aaa81cc4af375e332",
        ("https://github.com/SchedMD/slurm/archive/refs/tags/slurm-24-11-5-1.tar.gz",),
    ),
}
