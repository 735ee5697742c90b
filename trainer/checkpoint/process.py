"""The trainer's side of its writer process: start it, hand it saves, and detect its death."""

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
from trainer.checkpoint.job import SaveJob

_ROOT = Path(__file__).resolve().parents[2]
_EXIT_TIMEOUT_S = 2.0


class WriterProcess:
    """A running writer process; its results, or a failure if it dies, go into a queue."""

    def __init__(self, stage_handle: int, replies: queue.SimpleQueue[dict[str, Any]]) -> None:
        self._replies = replies
        self._job: SaveJob | None = None
        self._has_ended = False
        self._lock = threading.Lock()
        # -S: only the standard library can be imported, so the process is small and starts at once. It has its own
        # session, so that a launcher that signals the trainer's process group does not interrupt a write.
        self._process = subprocess.Popen(
            [sys.executable, "-S", "-m", "trainer.checkpoint.writer", str(stage_handle)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=(stage_handle,),
            env={**os.environ, "PYTHONPATH": str(_ROOT)},
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read_replies, name="checkpoint-replies", daemon=True)
        self._reader.start()

    @property
    def is_alive(self) -> bool:
        """Whether the process is running."""
        return self._process.poll() is None

    def save(self, job: SaveJob) -> None:
        """Hand over a save; its result arrives in the queue even if the process has died."""
        with self._lock:
            self._job = job
            has_ended = self._has_ended
        if has_ended:
            self._report_death(job)
        else:
            self._send(job.to_dict())

    def abandon(self, token: str) -> None:
        """Tell rank 0's writer that a save has failed on another rank and need not be waited for."""
        self._send({"abandon": token})

    def close(self) -> None:
        """End the process by closing its input, even in the middle of a write.

        A process that waits for a dead file server cannot even be killed; it must not hold up the end of the run.
        """
        assert self._process.stdin is not None  # noqa: S101 - it was opened above
        with suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(_EXIT_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._reader.join(_EXIT_TIMEOUT_S)

    def _send(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None  # noqa: S101 - it was opened above
        # The death of the process is detected by the thread that reads its replies.
        with suppress(OSError):
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            self._process.stdin.flush()

    def _read_replies(self) -> None:
        assert self._process.stdout is not None  # noqa: S101 - it was opened above
        for line in self._process.stdout:
            with self._lock:
                self._job = None
            self._replies.put(json.loads(line))
        self._process.wait()
        with self._lock:
            self._has_ended = True
            job = self._job
        if job is not None:
            self._report_death(job)

    def _report_death(self, job: SaveJob) -> None:
        reason = f"the writer process {self._process.pid} {_describe_exit(self._process.wait())}"
        report_failure(job, reason, self._replies)


def report_failure(job: SaveJob, reason: str, replies: queue.SimpleQueue[dict[str, Any]]) -> None:
    """Report a failed save on behalf of a writer that cannot; rank 0 waits for a report from every rank."""
    with suppress(OSError):
        job.partial.mkdir(parents=True, exist_ok=True)
        folder.write_file(job.partial / job.failed_name, json.dumps({"reason": reason}).encode())
    reply = {"kind": "failed", "token": job.token, "reason": reason, "seconds": 0.0, "bytes": 0}
    replies.put({**reply, "failed_rank": job.rank})


def _describe_exit(code: int) -> str:
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"
