"""Names and files of the available stacks, without reading them: nodes have no pydantic."""

from __future__ import annotations

from pathlib import Path

from cluster.catalog.similar import find_similar

FOLDERS = (Path("stacks"), Path(__file__).parents[2] / "stacks")
MAX_NODES = 1024
"""Largest number of nodes that a node group of a stack may have."""


def names() -> list[str]:
    """Return the names of all stacks in the working directory and in this repository."""
    files = [file for folder in FOLDERS for file in folder.glob("Pulumi.*.yaml")]
    return sorted({file.name.removeprefix("Pulumi.").removesuffix(".yaml") for file in files})


def similar(name: str) -> list[str]:
    """Return up to two stacks whose name resembles a mistyped one."""
    return find_similar(name, names(), limit=2)


def file_of(name: str) -> Path | None:
    """Return the file of a stack, or None if there is no stack of this name."""
    return next((file for folder in FOLDERS if (file := folder / f"Pulumi.{name}.yaml").is_file()), None)
