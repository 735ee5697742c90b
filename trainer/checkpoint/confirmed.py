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

FILE = "confirmed.json"


def read_confirmed(path: Path) -> int | None:
    """Return the last confirmed step, or None if nothing is."""
    try:
        return int(json.loads((path / FILE).read_bytes())["step"])
    except (OSError, ValueError, KeyError, TypeError):
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


def set_aside_unconfirmed(path: Path, fence: Fence) -> list[int]:
    """Rename the checkpoints that are not confirmed, so that no resume finds them, and return their steps.

    They may contain wrong values, but a person may want to look at them. Those of earlier calls are removed.
    """
    confirmed = read_confirmed(path)
    suspects = [each for each in folder.list_published(path) if confirmed is None or each.step > confirmed]
    fence.check()
    for old in path.glob(f"*{folder.SUSPECT}"):
        folder.remove(old, fence)
    for checkpoint in suspects:
        fence.check()
        checkpoint.path.rename(checkpoint.path.with_name(checkpoint.path.name + folder.SUSPECT))
    if suspects:
        folder.sync_folder(path)
    return [checkpoint.step for checkpoint in suspects]
