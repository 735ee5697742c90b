"""Find the newest intact checkpoint; ranks share the work of reading it and agree on the result."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from trainer.checkpoint import folder, manifest
from trainer.checkpoint.group import RankGroup
from trainer.checkpoint.read_retry import read_with_retries
from trainer.config.errors import ConfigError, ConfigProblem

_MAX_NAMED_FILES = 3


@dataclass(frozen=True)
class GoodCheckpoint:
    """A checkpoint that has passed its checks and can be loaded."""

    step: int
    path: Path
    world_size: int
    metric: float | None
    skipped: tuple[str, ...]
    """Newer checkpoints that are damaged, each with the file and what is wrong with it."""
    skipped_steps: tuple[int, ...] = ()


def find_newest(path: Path, group: RankGroup, verify: str, before: int | None = None) -> GoodCheckpoint | None:
    """Return the newest intact checkpoint, or None if there is none; raise ConfigError if all of them are damaged.

    Raise UnreadableCheckpoint on I/O errors that do not pass: an earlier checkpoint is used only if the later ones were
    read and found damaged.
    `path` is a folder of checkpoints, the folder of a run, or a single checkpoint; `before` excludes this step and
    later ones.
    """
    skipped: dict[int, str] = {}
    candidates = group.run_on_first(lambda: [(each.step, str(each.path)) for each in _list_candidates(path)])
    for step, name in candidates:
        if before is not None and step >= before:
            continue
        candidate = Path(name)
        intact, problems = _check(candidate, group, verify)
        if intact is not None:
            texts, steps = tuple(skipped.values()), tuple(skipped)
            return GoodCheckpoint(intact.step, candidate, intact.world_size, intact.metric, texts, steps)
        skipped[step] = f"{candidate.name}: {'; '.join(problems[:_MAX_NAMED_FILES])}"
    if skipped:
        message = f"no checkpoint in {path} is intact: {'. '.join(skipped.values())}"
        fix = "restore one of them, or start over in another run.folder"
        raise ConfigError([ConfigProblem("checkpoint.resume", message, fix)])
    return None


def _list_candidates(path: Path) -> list[folder.PublishedCheckpoint]:
    if (path / folder.MANIFEST).exists():
        return [folder.PublishedCheckpoint(0, 0, path)]
    own, below = path, path / folder.CHECKPOINTS_FOLDER
    return read_with_retries(own, lambda: folder.list_published(own) or folder.list_published(below))


def _check(path: Path, group: RankGroup, verify: str) -> tuple[manifest.Manifest | None, list[str]]:
    """Return the manifest if the checkpoint is intact, or None and the problems."""
    body, problems = group.run_on_first(lambda: _check_sizes(path))
    if body is None:
        return None, problems
    intact = manifest.parse_body(body)
    if verify == "full":
        share = group.run_together(lambda: manifest.check_content(path, intact, group.rank, group.world_size))
        shares = group.gather(share)
        problems = [problem for share in shares for problem in share]
    return (None, problems) if problems else (intact, [])


def _check_sizes(path: Path) -> tuple[dict[str, Any] | None, list[str]]:
    try:
        listed = read_with_retries(path / folder.MANIFEST, lambda: manifest.read_manifest(path))
    except manifest.DamagedCheckpoint as error:
        return None, [str(error)]
    problems = manifest.check_sizes(path, listed)
    return (None, problems) if problems else (asdict(listed), [])
