"""The path of a save from the trainer to the disk: a staging buffer and a writer process, replaced when necessary."""

from __future__ import annotations

import queue
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from trainer.checkpoint.job import SaveJob
from trainer.checkpoint.plan import SavePlan
from trainer.checkpoint.process import WriterProcess, report_failure
from trainer.checkpoint.stage import StagingBuffer

if TYPE_CHECKING:
    import torch


class SaveChannel:
    """The buffer and the writer of one rank; results of saves go into the queue `replies`."""

    def __init__(self) -> None:
        self.replies: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._buffer: StagingBuffer | None = None
        self._writer: WriterProcess | None = None

    def prepare(self, size: int) -> bool:
        """Create a buffer of at least `size` bytes and its writer; return whether a dead writer was replaced."""
        return self._connect(size)[2]

    def start(self, job: SaveJob, plan: SavePlan, tensors: Mapping[str, torch.Tensor]) -> bool:
        """Start a save and return whether a dead writer was replaced; report a save that cannot start as failed."""
        try:
            buffer, writer, is_replaced = self._connect(plan.size)
        except OSError as error:
            report_failure(job, f"cannot be started: {error.strerror}", self.replies)
            return False

        def write(problem: str) -> None:
            if problem:
                report_failure(job, problem, self.replies)
            else:
                writer.save(job)

        buffer.fill(plan, tensors, write)
        return is_replaced

    def abandon(self, token: str) -> None:
        """Tell the writer that a save has failed on another rank."""
        if self._writer is not None:
            self._writer.abandon(token)

    def before_update(self) -> None:
        """Wait until the last save has copied the tensors."""
        if self._buffer is not None:
            self._buffer.before_update()

    def close(self) -> None:
        """End the writer and release the buffer."""
        if self._writer is not None:
            self._writer.close()
        if self._buffer is not None:
            self._buffer.close()
        self._writer, self._buffer = None, None

    def _connect(self, size: int) -> tuple[StagingBuffer, WriterProcess, bool]:
        if self._buffer is not None and self._buffer.size < size:
            self.close()
        if self._buffer is None:
            self._buffer = StagingBuffer(size)
        is_replaced = False
        if self._writer is not None and not self._writer.is_alive:
            self._writer.close()
            self._writer = None
            is_replaced = True
        if self._writer is None:
            self._writer = WriterProcess(self._buffer.handle, self.replies)
        return self._buffer, self._writer, is_replaced
