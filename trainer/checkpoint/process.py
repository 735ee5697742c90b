"""The trainer's end of a writer process: starts it, hands it saves, and notices when it is gone."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

from trainer.checkpoint import folder
from trainer.checkpoint.job import Job

_ROOT = Path(__file__).resolve().parents[2]


class WriterProcess:
    def __init__(self, stage_handle: int, replies: queue.SimpleQueue[dict[str, Any]]) -> None:
        self._replies = replies
        self._job: Job | None = None
        self._ended = False
        self._lock = threading.Lock()
        # -S: nothing but the standard library can be imported, so the process is small and there in no time. Its own
        # session: a launcher that signals the trainer's process group does not hit a write.
        self._process = subprocess.Popen(
            [sys.executable, "-S", "-m", "trainer.checkpoint.writer", str(stage_handle)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=(stage_handle,),
            env={**os.environ, "PYTHONPATH": str(_ROOT)},
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, name="checkpoint-replies", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def save(self, job: Job) -> None:
        with self._lock:
            self._job = job
            ended = self._ended
        if ended:
            self._gone(job)
        else:
            self._send(job.to_dict())

    def abandon(self, token: str) -> None:
        self._send({"abandon": token})

    def close(self) -> None:
        """The end of its input is the end of the process, also in the middle of a write."""
        assert self._process.stdin is not None  # noqa: S101 - it was asked for above
        with suppress(OSError):
            self._process.stdin.close()
        self._process.wait()
        self._reader.join()

    def _send(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None  # noqa: S101 - it was asked for above
        # A process that is gone is noticed by the end of its replies.
        with suppress(OSError):
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            self._process.stdin.flush()

    def _read(self) -> None:
        assert self._process.stdout is not None  # noqa: S101 - it was asked for above
        for line in self._process.stdout:
            with self._lock:
                self._job = None
            self._replies.put(json.loads(line))
        self._process.wait()
        with self._lock:
            self._ended = True
            job = self._job
        if job is not None:
            self._gone(job)

    def _gone(self, job: Job) -> None:
        fail(job, f"the writer process {self.pid} was {_ending(self._process.wait())}", self._replies)


def fail(job: Job, reason: str, replies: queue.SimpleQueue[dict[str, Any]]) -> None:
    """In the place of a writer that cannot say so itself: rank 0 waits for the word of every rank."""
    with suppress(OSError):
        job.partial.mkdir(parents=True, exist_ok=True)
        folder.write(job.partial / job.failed_name, json.dumps({"reason": reason}).encode())
    replies.put({"kind": "failed", "token": job.token, "reason": reason, "seconds": 0.0, "bytes": 0})


def _ending(code: int) -> str:
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
