"""A save by the writer's own code that ends, as if killed, before its n-th file operation.

python -S -m tests.trainer.checkpoint_crash FOLDER STEP CONTENT N
"""

from __future__ import annotations

import os
import sys
from typing import Any

from trainer.checkpoint.folder import INDEX, STATE, own_name
from trainer.checkpoint.job import SaveJob
from trainer.checkpoint.writer import save

OPERATIONS = ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.utime", "os.listdir", "os.scandir")
KILLED, SAVED = 9, 0


def main() -> None:
    folder, step, content, limit = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
    operations = 0

    def count(event: str, _: tuple[Any, ...]) -> None:
        nonlocal operations
        if event in OPERATIONS:
            operations += 1
            if operations > limit:
                os._exit(KILLED)

    sys.addaudithook(count)
    save_as_two_ranks(folder, step, content)
    os._exit(SAVED)


def save_as_two_ranks(folder: str, step: int, content: str) -> None:
    """Save as two ranks, one after the other."""
    for rank in (1, 0):
        job = SaveJob(
            directory=folder,
            step=step,
            token=f"{os.getpid():08x}-1",
            rank=rank,
            world_size=2,
            size=len(content),
            texts={own_name(rank): "{}"} | ({INDEX: "{}", STATE: "{}"} if rank == 0 else {}),
            metric=None,
            keep=1,
            best="",
        )
        save(job, memoryview(content.encode()), set())


if __name__ == "__main__":
    main()
