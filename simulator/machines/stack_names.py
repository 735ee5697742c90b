"""Names of the stacks that there are. Free of what reads them: nodes have no pydantic."""

from __future__ import annotations

from pathlib import Path

from cluster.catalog.near import near

FOLDERS = (Path("stacks"), Path(__file__).parents[2] / "stacks")


def names() -> list[str]:
    files = [file for folder in FOLDERS for file in folder.glob("Pulumi.*.yaml")]
    return sorted({file.name.removeprefix("Pulumi.").removesuffix(".yaml") for file in files})


def meant(word: str) -> list[str]:
    """Stacks that somebody may have meant."""
    return near(word, names(), most=2)


def file_of(word: str) -> Path | None:
    return next((file for folder in FOLDERS if (file := folder / f"Pulumi.{word}.yaml").is_file()), None)
