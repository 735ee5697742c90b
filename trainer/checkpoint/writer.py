"""The writer process of one rank: writes the staged bytes to disk while training continues. Standard library only.

It is started with a shared-memory file and two pipes: each JSON line in is a save, each JSON line out is its result.
"""

from __future__ import annotations

import errno
import json
import mmap
import os
import queue
import signal
import sys
import threading
import time
from contextlib import suppress
from typing import Any

from trainer.checkpoint import folder, manifest
from trainer.checkpoint.fence import FolderLost
from trainer.checkpoint.job import SaveAbandoned, SaveJob
from trainer.checkpoint.publish import publish
from trainer.checkpoint.shard import write_shard

IGNORED_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def main() -> None:
    """Write saves until the trainer closes the pipe."""
    # Slurm signals every process of a job. The signals are meant for the trainer, whose last save this process writes.
    for number in IGNORED_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    image = mmap.mmap(int(sys.argv[1]), 0, access=mmap.ACCESS_READ)
    jobs: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    abandoned: set[str] = set()
    threading.Thread(target=_listen, args=(jobs, abandoned), daemon=True).start()
    while True:
        job = SaveJob.from_dict(jobs.get())
        _reply(save(job, memoryview(image), abandoned))


def save(job: SaveJob, image: memoryview, abandoned: set[str]) -> dict[str, Any]:
    """Write this rank's part of a save, publish the checkpoint on rank 0, and return the result."""
    started = time.monotonic()
    kind, reason, size, failed_rank = "failed", "", 0, None
    try:
        size = _write(job, image)
        kind = "written"
        if job.rank == 0:
            size = publish(job, abandoned)
            kind = "published"
    except SaveAbandoned as error:
        reason, failed_rank = str(error), error.rank
    except FolderLost as error:
        reason = str(error)
    except OSError as error:
        if _is_removed(job, error):
            reason = "rank 0 has abandoned this save"
        else:
            failed_rank, reason = job.rank, f"{error.strerror} ({error.filename or job.partial})"
    if reason:
        kind = "failed"
        _clean_up(job, reason)
    seconds = time.monotonic() - started
    result = {"kind": kind, "token": job.token, "reason": reason, "seconds": seconds, "bytes": size}
    return {**result, "failed_rank": failed_rank}


def _is_removed(job: SaveJob, error: OSError) -> bool:
    """Return whether this part could not be written only because rank 0 has removed the whole save (see `_clean_up`).

    Rank 0 reports the cause. NFS reports a file that another client has removed as a stale handle.
    """
    if job.rank == 0 or error.errno not in (errno.ENOENT, errno.ESTALE):
        return False
    # Another rank may have created the folder again, but never this rank's file.
    try:
        os.stat(job.partial / folder.shard_name(job.rank))
    except FileNotFoundError:
        return True
    except OSError:
        pass
    return False


def _clean_up(job: SaveJob, reason: str) -> None:
    """Remove this rank's files of a failed save; rank 0, which waits for the others, removes the whole save."""
    if job.rank == 0:
        with suppress(OSError, FolderLost):
            job.fence.check()
            folder.remove_leftovers(job.folder, epoch=job.fence.epoch)
        return
    # The large file goes first, so that a full disk has space for the reason.
    with suppress(OSError):
        (job.partial / folder.shard_name(job.rank)).unlink()
    with suppress(OSError):
        folder.write_file(job.partial / job.failed_name, json.dumps({"reason": reason}).encode())


def _write(job: SaveJob, image: memoryview) -> int:
    if job.rank == 0:
        job.fence.check()
        folder.remove_leftovers(job.folder, job.partial.name, job.fence.epoch)
    job.partial.mkdir(parents=True, exist_ok=True)
    files = {folder.shard_name(job.rank): write_shard(job.partial / folder.shard_name(job.rank), image[: job.size])}
    for name, text in job.texts.items():
        content = text.encode()
        folder.write_file(job.partial / name, content)
        files[name] = manifest.compute_checksum(content)
    report = {name: {"size": file.size, "sha256": file.sha256} for name, file in files.items()}
    folder.write_file(job.partial / job.done_name, json.dumps(report).encode())
    return sum(file.size for file in files.values())


def _listen(jobs: queue.SimpleQueue[dict[str, Any]], abandoned: set[str]) -> None:
    for line in sys.stdin.buffer:
        message = json.loads(line)
        if "abandon" in message:
            abandoned.add(message["abandon"])
        else:
            jobs.put(message)
    # The trainer has ended. The next one loads the last published checkpoint, and nothing may change while it reads.
    os._exit(0)


def _reply(result: dict[str, Any]) -> None:
    sys.stdout.buffer.write(json.dumps(result).encode() + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
