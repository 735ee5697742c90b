"""Ranks of a run; the disk is full when the checkpoint writer of one of them writes its part.

python -m tests.trainer.forked_ranks RANKS tests.trainer.full_disk_rank RANK CONFIG [key.sub=value ...]
"""

from __future__ import annotations

import os
import sys
from typing import Any

from trainer.__main__ import main
from trainer.checkpoint.folder import shard_name
from trainer.checkpoint.job import SaveJob
from trainer.checkpoint.process import WriterProcess


def fill_disk() -> None:
    """Let the writer open a device that is always full, instead of its file."""
    writer_class: Any = WriterProcess
    save = writer_class.save

    def save_to_full_disk(writer: WriterProcess, job: SaveJob) -> None:
        job.partial.mkdir(parents=True, exist_ok=True)
        (job.partial / shard_name(job.rank)).symlink_to("/dev/full")
        save(writer, job)

    writer_class.save = save_to_full_disk


if __name__ == "__main__":
    if os.environ["RANK"] == sys.argv[1]:
        fill_disk()
    status = main(sys.argv[2:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
