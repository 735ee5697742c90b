"""The writer process of one rank: takes the staged bytes to the disk while training goes on. Standard library only.

Started with a shared-memory file and two pipes. One JSON line in is one save, one JSON line out says what became of it.
"""

from __future__ import annotations

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
from trainer.checkpoint.job import Abandoned, Job
from trainer.checkpoint.publish import publish
from trainer.checkpoint.shard import write_shard

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def main() -> None:
    # A cluster's warnings go to every process of a job. Those are for the trainer, whose last save this process writes.
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    image = mmap.mmap(int(sys.argv[1]), 0, access=mmap.ACCESS_READ)
    jobs: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    abandoned: set[str] = set()
    threading.Thread(target=_listen, args=(jobs, abandoned), daemon=True).start()
    while True:
        job = Job(**jobs.get())
        _say(save(job, memoryview(image), abandoned))


def save(job: Job, image: memoryview, abandoned: set[str]) -> dict[str, Any]:
    started = time.monotonic()
    kind, reason, size = "failed", "", 0
    try:
        size = _write(job, image)
        kind = "written"
        if job.rank == 0:
            size = publish(job, abandoned)
            kind = "published"
    except Abandoned as error:
        reason = str(error)
    except OSError as error:
        reason = f"{error.strerror} ({error.filename or job.partial})"
    if reason:
        kind = "failed"
        give_up(job, reason)
    return {"kind": kind, "token": job.token, "reason": reason, "seconds": time.monotonic() - started, "bytes": size}


def give_up(job: Job, reason: str) -> None:
    """Leave nothing of this save; rank 0, who waits for the others, removes it as a whole."""
    if job.rank == 0:
        with suppress(OSError):
            folder.sweep(job.folder)
        return
    # First the large file, so that on a full disk there is room to say why.
    with suppress(OSError):
        (job.partial / folder.shard_name(job.rank)).unlink()
    with suppress(OSError):
        folder.write(job.partial / job.failed_name, json.dumps({"reason": reason}).encode())


def _write(job: Job, image: memoryview) -> int:
    if job.rank == 0:
        folder.sweep(job.folder, spare=job.partial.name)
    job.partial.mkdir(parents=True, exist_ok=True)
    files = {folder.shard_name(job.rank): write_shard(job.partial / folder.shard_name(job.rank), image[: job.size])}
    for name, text in job.texts.items():
        content = text.encode()
        folder.write(job.partial / name, content)
        files[name] = manifest.sums(content)
    done = {name: {"size": file.size, "sha256": file.sha256} for name, file in files.items()}
    folder.write(job.partial / job.done_name, json.dumps(done).encode())
    return sum(file.size for file in files.values())


def _listen(jobs: queue.SimpleQueue[dict[str, Any]], abandoned: set[str]) -> None:
    for line in sys.stdin.buffer:
        message = json.loads(line)
        if "abandon" in message:
            abandoned.add(message["abandon"])
        else:
            jobs.put(message)
    # The trainer is gone. Whoever takes its place finds the last published checkpoint; nothing may change under it.
    os._exit(0)


def _say(reply: dict[str, Any]) -> None:
    sys.stdout.buffer.write(json.dumps(reply).encode() + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
