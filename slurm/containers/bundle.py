"""A bundle: the folder with an image's root filesystem and its config.json, as the OCI runtime specification says."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slurm.containers.error import ContainerError

CONFIG = "config.json"
ARCHITECTURE = "org.opencontainers.image.architecture"
"""Annotation with the architecture of the image's programs, as Go names it."""
GO_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_BUILD = "`muster image job Dockerfile --name NAME` creates bundles, in images/NAME of the shared filesystem"


@dataclass(frozen=True)
class Bundle:
    """What a container needs of a bundle."""

    root: Path
    """Its root filesystem, without links in the path."""
    environment: dict[str, str]
    folder: str
    """Working folder of the image."""


def load_bundle(path: str, machine: str) -> Bundle:
    """Return the bundle in a folder; raise ContainerError if its programs cannot run on this kind of machine.

    What cannot be read raises OSError.
    """
    folder = Path(path)
    if not folder.is_dir():
        problem = "is a file, not a folder" if folder.exists() else f"does not exist{_list_neighbors(folder)}"
        raise ContainerError(f"--container={path} {problem}", _BUILD)
    config = _read_config(path, folder)
    process = _read_object(config, "process")
    root = (folder / str(_read_object(config, "root").get("path", "rootfs"))).resolve()
    if not root.is_dir():
        raise ContainerError(f"--container={path} has no root filesystem: {root} is not a folder", _BUILD)
    architecture = _read_object(config, "annotations").get(ARCHITECTURE)
    if architecture and architecture != GO_ARCHITECTURES.get(machine, machine):
        what = (
            f"--container={path} is an image for {architecture}, this node is {GO_ARCHITECTURES.get(machine, machine)}"
        )
        raise ContainerError(what, "build the image for this architecture (`docker build --platform`)")
    variables = process.get("env")
    entries = (str(entry).partition("=") for entry in (variables if isinstance(variables, list) else ()))
    return Bundle(root, {name: value for name, _, value in entries}, str(process.get("cwd") or "/"))


def render_bundle_config(architecture: str, environment: Sequence[str], folder: str) -> str:
    """Return the config.json of a bundle whose root filesystem is in the folder `rootfs` next to it."""
    config = {
        "ociVersion": "1.0.2",
        "root": {"path": "rootfs", "readonly": True},
        "process": {"args": ["sh"], "env": list(environment), "cwd": folder, "user": {"uid": 0, "gid": 0}},
        "annotations": {ARCHITECTURE: architecture},
    }
    return json.dumps(config, indent=1)


def _read_config(path: str, folder: Path) -> dict[str, Any]:
    try:
        config = json.loads((folder / CONFIG).read_bytes())
    except FileNotFoundError:
        raise ContainerError(f"--container={path} is not a bundle: it has no {CONFIG}", _BUILD) from None
    except ValueError as error:
        raise ContainerError(f"--container={path}: its {CONFIG} is not valid JSON: {error}", _BUILD) from None
    if not isinstance(config, dict):
        raise ContainerError(f"--container={path}: its {CONFIG} is not a JSON object", _BUILD)
    return config


def _read_object(config: dict[str, Any], name: str) -> dict[str, Any]:
    value = config.get(name)
    return value if isinstance(value, dict) else {}


def _list_neighbors(folder: Path) -> str:
    """Return the bundles next to a folder that does not exist, to show a typing error."""
    try:
        names = sorted(each.name for each in folder.parent.iterdir() if (each / CONFIG).is_file())
    except OSError:
        return ""
    return f"; {folder.parent} has: {', '.join(names)}" if names else ""
