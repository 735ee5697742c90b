"""Record how a user's script ended, which has no loop of ours around it: by an uncaught error, or as intended."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType

from trainer.config.errors import ConfigError
from trainer.life import outcome
from trainer.life.failure import describe, inform_torchrun, record
from trainer.life.outcome import Code


class UncaughtErrors:
    """A hook that prints an uncaught error of the script as usual, and records it as the end of the run."""

    def __init__(self, folder: Path, rank: int, hosts: Sequence[str], read_step: Callable[[], int]) -> None:
        self._folder = folder
        self._rank = rank
        self._hosts = hosts
        self._read_step = read_step
        self._began = time.time()
        self._previous = sys.excepthook
        outcome.clear(folder, rank)
        sys.excepthook = self._handle

    def close(self) -> None:
        """Record that the run ended as intended, and remove the hook, unless another one was installed after it.

        A script without a folder has saved nothing, so there is no run to speak of.
        """
        if sys.excepthook == self._handle:
            sys.excepthook = self._previous
        if self._folder.is_dir():
            with suppress(OSError):  # the training is done, whatever happens to its record
                outcome.end(Code.FINISHED, "the script closed its trainer", self._read_step(), self._folder, self._rank)

    def _handle(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        self._previous(kind, error, trace)
        if isinstance(error, Exception):
            _record_end(
                self._folder, error, rank=self._rank, step=self._read_step(), hosts=self._hosts, began=self._began
            )


@contextmanager
def recorded_start(folder: Path, rank: int) -> Iterator[None]:
    """Record an error of the block as the end of the run; wrong settings are not recorded, because nothing began."""
    began = time.time()
    try:
        yield
    except ConfigError:
        raise
    except Exception as error:
        _record_end(folder, error, rank=rank, step=0, hosts=(), began=began)
        raise


def _record_end(  # noqa: PLR0913
    folder: Path, error: Exception, *, rank: int, step: int, hosts: Sequence[str], began: float
) -> None:
    failure = describe(error, rank=rank, step=step, hosts=hosts)
    record(folder, failure)
    inform_torchrun(error)
    _, ended = outcome.end_after_failure(folder, failure, began)
    print(f"trainer: {ended.outcome} at step {ended.step}: {ended.reason}", file=sys.stderr, flush=True)
