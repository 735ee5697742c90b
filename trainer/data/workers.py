"""Worker processes that make shards; the death of a worker is detected, and no worker outlives the command."""

from __future__ import annotations

import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import get_context, resource_tracker
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from trainer.config.errors import ConfigError, ConfigProblem
from trainer.data.index import Shard
from trainer.data.shard import ReadOptions, ShardTask, find_finished, write_shard
from trainer.data.tokenizer import load_tokenizer

# Bytes between two progress reports: a message per piece of text would take too much time of the main process.
_REPORT_BYTES = 1 << 22


@dataclass(frozen=True)
class WorkerSettings:
    """The settings that all workers share."""

    folder: str
    tokenizer: str
    options: ReadOptions


@dataclass(frozen=True)
class FinishedTask:
    """A task and its shard; `reused` means that an earlier run had finished it."""

    task: ShardTask
    shard: Shard
    reused: bool


def run_tasks(
    tasks: Iterable[ShardTask], workers: int, settings: WorkerSettings, report: Callable[[int], None]
) -> list[FinishedTask]:
    """Make all shards and return them in the order in which they finished.

    `report` is called with the number of input bytes as they are processed.
    """
    waiting = deque(tasks)
    team: list[_Worker] = []
    finished: list[FinishedTask] = []
    # The first worker would start the resource tracker, which unblocks interrupts, so it is started before.
    resource_tracker.ensure_running()
    try:
        for _ in range(min(workers, len(waiting))):
            with _delay_interrupt():
                team.append(_Worker(settings))
            team[-1].start_next(waiting)
        while busy := {worker.pipe: worker for worker in team if worker.task}:
            ready = wait(list(busy))
            for worker in (worker for pipe, worker in busy.items() if pipe in ready):
                message = worker.receive()
                if isinstance(message, int):
                    report(message)
                else:
                    finished.append(message)
                    worker.start_next(waiting)
    finally:
        for worker in team:
            worker.stop()
    return finished


@contextmanager
def _delay_interrupt() -> Iterator[None]:
    """Delay an interrupt to the end of the block; it would leave a half-started process that nothing stops."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _Worker:
    """A worker process and its current task."""

    def __init__(self, settings: WorkerSettings) -> None:
        # A spawned process inherits only its own end of the pipe, so it sees an end of file if this process is killed.
        context = get_context("spawn")
        self.pipe, child_pipe = context.Pipe()
        self.task: ShardTask | None = None
        self._process = context.Process(target=_work, args=(child_pipe, settings), daemon=True)
        self._process.start()
        child_pipe.close()

    def start_next(self, waiting: deque[ShardTask]) -> None:
        self.task = waiting.popleft() if waiting else None
        if self.task:
            # If the worker has died, `receive` gets its last messages first and then reports the death.
            with suppress(ConnectionError):
                self.pipe.send(self.task)

    def receive(self) -> int | FinishedTask:
        try:
            message = self.pipe.recv()
        except (EOFError, OSError) as error:  # an end of file in the middle of a message is a plain OSError
            self._process.join()
            raise self._describe_death(self._process.exitcode) from error
        if isinstance(message, ConfigError):
            raise message
        return message

    def stop(self) -> None:
        """Kill the process; an unfinished shard has a temporary name, and the next run makes it again."""
        self.pipe.close()
        self._process.kill()
        self._process.join()

    def _describe_death(self, code: int | None) -> ConfigError:
        cause = signal.Signals(-code).name if code and code < 0 else f"exit code {code}"
        file = self.task.file if self.task else ""
        message = f"a worker died ({cause}) while making {file}"
        fix = "run the command again to continue; fewer workers need less memory"
        return ConfigError([ConfigProblem("--workers", message, fix)])


def _work(pipe: Connection[Any, Any], settings: WorkerSettings) -> None:
    # An interrupt from the keyboard reaches the whole process group; the command decides what to do.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        tokenizer = load_tokenizer(settings.tokenizer)
        folder = Path(settings.folder)
        while True:
            task: ShardTask = pipe.recv()
            counter = _Counter(pipe)
            try:
                existing = find_finished(folder, task, tokenizer.dtype)
                shard = existing or write_shard(folder, task, tokenizer, settings.options, counter.add)
            except ConnectionError:
                raise
            except OSError as error:
                fix = "fix the cause and run the command again to continue"
                raise ConfigError([ConfigProblem(str(folder / task.file), str(error), fix)]) from error
            pipe.send(task.size - counter.sent)
            pipe.send(FinishedTask(task, shard, reused=existing is not None))
    except ConfigError as error:
        pipe.send(error)
    except (EOFError, ConnectionError):
        return  # the command has ended


class _Counter:
    """A count of processed bytes, sent whenever enough have accumulated."""

    def __init__(self, pipe: Connection[Any, Any]) -> None:
        self._pipe = pipe
        self._unsent = 0
        self.sent = 0

    def add(self, size: int) -> None:
        self._unsent += size
        if self._unsent >= _REPORT_BYTES:
            self._pipe.send(self._unsent)
            self.sent += self._unsent
            self._unsent = 0
