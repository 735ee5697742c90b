"""The record of which checkpoints are confirmed: a replay after them has shown that all ranks compute the same.

The file `confirmed.json` in the folder of checkpoints holds a step: all checkpoints up to it are confirmed. Standard
library only, because the writer process reads it.
"""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

from trainer.checkpoint import folder
from trainer.checkpoint.fence import Fence
from trainer.checkpoint.read_retry import read_with_retries

FILE = "confirmed.json"


def read_confirmed(path: Path) -> int | None:
    """Return the last confirmed step, or None if nothing is; raise UnreadableCheckpoint if that cannot be read."""
    file = path / FILE
    try:
        return int(json.loads(read_with_retries(file, file.read_bytes))["step"])
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None


def write_confirmed(path: Path, step: int, fence: Fence) -> None:
    """Record that all checkpoints up to this step are confirmed."""
    fence.check()
    path.mkdir(parents=True, exist_ok=True)
    folder.write_file(path / FILE, json.dumps({"step": step}).encode())


def limit_confirmed(path: Path, step: int, fence: Fence) -> None:
    """Forget confirmations after this step, at which the run continues: later checkpoints will be new ones."""
    confirmed = read_confirmed(path)
    if confirmed is not None and confirmed > step:
        write_confirmed(path, step, fence)


def forget_confirmed(path: Path, fence: Fence) -> None:
    """Forget all confirmations, so that none of the checkpoints is held for a rollback."""
    if (path / FILE).exists():
        fence.check()
        with suppress(FileNotFoundError):
            (path / FILE).unlink()


def set_aside_unconfirmed(path: Path, fence: Fence, resumed_step: int) -> list[int]:
    """Rename the checkpoints that are not confirmed, so that no resume finds them, and return their steps.

    They may contain wrong values, but a person may want to look at them. Those of earlier calls are removed once a
    newer checkpoint is confirmed. If nothing is, those up to `resumed_step`, at which this attempt began, stay: they
    may be from before replays were switched on, and the run has nothing else.
    """
    confirmed = read_confirmed(path)
    published = folder.list_published(path)
    good_step = resumed_step if confirmed is None else confirmed
    suspects = [each for each in published if each.step > good_step]
    newest_confirmed = max((each.step for each in published if each.step <= (confirmed or 0)), default=0)
    fence.check()
    for old in path.glob(f"*{folder.SUSPECT}"):
        if _read_step(old) < newest_confirmed:
            folder.remove(old, fence)
    for checkpoint in suspects:
        fence.check()
        checkpoint.path.rename(_choose_suspect_name(checkpoint.path))
    if suspects:
        folder.sync_folder(path)
    return [checkpoint.step for checkpoint in suspects]


def _read_step(suspect: Path) -> int:
    return int(suspect.name.removeprefix("step-").split(".")[0])


def _choose_suspect_name(checkpoint: Path) -> Path:
    """Return a name that no earlier suspect of the same step has."""
    target, number = checkpoint.with_name(checkpoint.name + folder.SUSPECT), 1
    while target.exists():
        number += 1
        target = checkpoint.with_name(f"{checkpoint.name}.{number}{folder.SUSPECT}")
    return target
