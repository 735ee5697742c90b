"""The root of a container: folders and links of its own, in which parts of the image's root filesystem are mounted.

The image's files belong to somebody else and must stay as they are, so folders on which something is to be mounted
cannot be created among them. Where one is missing, its parent becomes a folder of the container's own, in which
everything that the image has there is mounted one by one.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

_MAX_LINKS = 40


@dataclass
class RootTree:
    """What to create in the root of a container, and what of the image to mount there; paths begin with `/`."""

    folders: list[str] = field(default_factory=list)
    links: dict[str, str] = field(default_factory=dict)
    mounts: list[str] = field(default_factory=list)


def plan_root(image: Path, points: Iterable[str]) -> RootTree:
    """Return the tree in which each of the points, which are paths without links, exists or can be created."""
    places = set(points)
    opened = {"/"} | {parent for point in places for parent in _find_missing(image, point)}
    tree = RootTree()
    _add_folder(tree, image, "/", opened, places)
    return tree


def resolve_in(image: Path, path: str) -> str:
    """Return a path of the container without links, which lead nowhere outside of its root."""
    remaining, done, links = path.strip("/").split("/"), "/", 0
    while remaining:
        name = remaining.pop(0)
        if name in ("", "."):
            continue
        if name == "..":
            done = posixpath.dirname(done)
            continue
        place = posixpath.join(done, name)
        target = _read_link(image, place)
        if target is None:
            done = place
            continue
        links += 1
        if links > _MAX_LINKS:
            return place
        if target.startswith("/"):
            done = "/"
        remaining = [*target.split("/"), *remaining]
    return done


def _find_missing(image: Path, point: str) -> list[str]:
    """Return the folders of the image that must be opened so that the point can be created; none if it exists."""
    if os.path.lexists(image / point.lstrip("/")):
        return []
    parents = [str(parent) for parent in Path(point).parents]
    return [parent for parent in parents if (image / parent.lstrip("/")).is_dir()]


def _add_folder(tree: RootTree, image: Path, folder: str, opened: set[str], points: set[str]) -> None:
    for entry in sorted(os.scandir(image / folder.lstrip("/")), key=lambda entry: entry.name):
        path = posixpath.join(folder, entry.name)
        if path in points:
            continue
        if entry.is_symlink():
            tree.links[path] = os.readlink(entry.path)
        elif path in opened:
            tree.folders.append(path)
            _add_folder(tree, image, path, opened, points)
        elif entry.is_dir() or entry.is_file():
            tree.mounts.append(path)


def _read_link(image: Path, path: str) -> str | None:
    try:
        return os.readlink(image / path.lstrip("/"))
    except OSError:
        return None
