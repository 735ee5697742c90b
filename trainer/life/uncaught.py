"""Record the error that ends a user's script, which has no loop of ours around it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType

from trainer.life.failure import describe, inform_torchrun, record


class UncaughtErrors:
    """A hook that records an uncaught error of the script as a failure of its rank, and then prints it as usual."""

    def __init__(self, folder: Path, rank: int, hosts: Sequence[str], read_step: Callable[[], int]) -> None:
        self._folder = folder
        self._rank = rank
        self._hosts = hosts
        self._read_step = read_step
        self._previous = sys.excepthook
        sys.excepthook = self._handle

    def close(self) -> None:
        """Remove the hook, unless another one was installed after it."""
        if sys.excepthook == self._handle:
            sys.excepthook = self._previous

    def _handle(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if isinstance(error, Exception):
            failure = describe(error, rank=self._rank, step=self._read_step(), hosts=self._hosts)
            record(self._folder, failure)
            inform_torchrun(error)
        self._previous(kind, error, trace)
