"""The configuration with which crun starts a container: its namespaces, user, mounts and process."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class BindMount:
    """A file or folder of the node that appears in a container."""

    source: str
    place: str
    read_only: bool = False
    recursive: bool = True
    """Whether filesystems that are mounted in the folder appear too."""


@dataclass(frozen=True)
class Process:
    """The first process of a container."""

    user: int
    group: int
    folder: str
    command: Sequence[str]
    environment: Mapping[str, str]
    terminal: bool = False


def render_config(root: str, mounts: Iterable[BindMount], process: Process) -> dict[str, Any]:
    """Return the configuration.

    Only users and mounts are the container's own: processes, network and shared memory stay those of the job, which
    Slurm limits, signals and ends, and in which ranks reach each other.
    """
    return {
        "ociVersion": "1.0.2",
        "root": {"path": root},
        "process": {
            "terminal": process.terminal,
            "user": {"uid": process.user, "gid": process.group},
            "args": list(process.command),
            "env": [f"{name}={value}" for name, value in process.environment.items()],
            "cwd": process.folder,
            "noNewPrivileges": True,
        },
        "mounts": [_render_mount(mount) for mount in mounts],
        "linux": {
            "namespaces": [{"type": "user"}, {"type": "mount"}],
            # Users are themselves, so files on the shared filesystem belong to them, and nobody is root.
            "uidMappings": [{"containerID": process.user, "hostID": process.user, "size": 1}],
            "gidMappings": [{"containerID": process.group, "hostID": process.group, "size": 1}],
        },
        # Access to files by further groups of the user, which cannot be mapped.
        "annotations": {"run.oci.keep_original_groups": "1"},
    }


def _render_mount(mount: BindMount) -> dict[str, Any]:
    options = ["rbind" if mount.recursive else "bind", "rprivate", *(["ro"] if mount.read_only else [])]
    return {"destination": mount.place, "source": mount.source, "type": "none", "options": options}
