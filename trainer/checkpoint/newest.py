"""Find the newest checkpoint whose every byte is as it was written; ranks share the reading and agree."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from trainer.checkpoint import folder, manifest
from trainer.checkpoint.group import Group
from trainer.config.errors import ConfigError, ConfigProblem


@dataclass(frozen=True)
class Found:
    step: int
    path: Path
    world_size: int
    metric: float | None
    # Newer ones that are damaged, each with the file and what is wrong with it.
    skipped: tuple[str, ...]


def newest(path: Path, group: Group, verify: str, before: int | None = None) -> Found | None:
    """`path` is a folder of checkpoints, the run that has it, or a single one; `before` leaves out this step and later
    ones."""
    skipped: list[str] = []
    entries = group.from_first(lambda: _candidates(path))
    for entry in [entry for entry in entries if before is None or entry.step < before]:
        whole, bad = _check(entry.path, group, verify)
        if whole is not None:
            return Found(whole.step, entry.path, whole.world_size, whole.metric, tuple(skipped))
        skipped.append(f"{entry.path.name}: {'; '.join(bad[:3])}")
    if skipped:
        raise ConfigError(
            [
                ConfigProblem(
                    "checkpoint.resume",
                    f"no checkpoint in {path} is whole: {'. '.join(skipped)}",
                    "restore one of them, or start over in another run.folder",
                )
            ]
        )
    return None


def _candidates(path: Path) -> list[folder.Published]:
    if (path / folder.MANIFEST).exists():
        return [folder.Published(0, 0, path)]
    return folder.published(path) or folder.published(path / folder.OF_RUN)


def _check(path: Path, group: Group, verify: str) -> tuple[manifest.Manifest | None, list[str]]:
    whole, bad = group.from_first(lambda: _first_look(path))
    if whole is None:
        return None, bad
    if verify == "full":
        every = group.all(manifest.wrong_sums(path, whole, group.rank, group.world_size))
        bad = [text for some in every for text in some]
    return (None, bad) if bad else (whole, [])


def _first_look(path: Path) -> tuple[manifest.Manifest | None, list[str]]:
    try:
        whole = manifest.read(path)
    except manifest.Damaged as error:
        return None, [str(error)]
    bad = manifest.wrong_sizes(path, whole)
    return (None, bad) if bad else (whole, [])
