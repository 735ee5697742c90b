"""Processes that make shards. One that dies is noticed, and none outlives the command that started it."""

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
from trainer.data.shard import Task, finished, make
from trainer.data.tokenizer import tokenizer_for

# Fewer messages than pieces: each costs the command that reads them some time.
_REPORT_BYTES = 1 << 22


@dataclass(frozen=True)
class Settings:
    folder: str
    tokenizer: str
    text_key: str


@dataclass(frozen=True)
class Done:
    task: Task
    shard: Shard
    reused: bool


def run(tasks: Iterable[Task], workers: int, settings: Settings, report: Callable[[int], None]) -> list[Done]:
    """All tasks, in whatever order they end; `report` hears of the bytes of input as they are worked through."""
    waiting = deque(tasks)
    crew: list[_Worker] = []
    done: list[Done] = []
    # The first process started starts this one before it, and lets interrupts through for that.
    resource_tracker.ensure_running()
    try:
        for _ in range(min(workers, len(waiting))):
            with _interrupt_held():
                crew.append(_Worker(settings))
            crew[-1].next(waiting)
        while busy := {worker.pipe: worker for worker in crew if worker.task}:
            ready = wait(list(busy))
            for worker in (worker for pipe, worker in busy.items() if pipe in ready):
                message = worker.receive()
                if isinstance(message, int):
                    report(message)
                else:
                    done.append(message)
                    worker.next(waiting)
    finally:
        for worker in crew:
            worker.stop()
    return done


@contextmanager
def _interrupt_held() -> Iterator[None]:
    """An interrupt in here comes at the end: a process that is half started would be known to nobody and complain."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _Worker:
    """A process and the task it is at."""

    def __init__(self, settings: Settings) -> None:
        # A fresh interpreter has this end of the pipe only, so it reads an end of file when this process is killed.
        context = get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.task: Task | None = None
        self._process = context.Process(target=_work, args=(theirs, settings), daemon=True)
        self._process.start()
        theirs.close()

    def next(self, waiting: deque[Task]) -> None:
        self.task = waiting.popleft() if waiting else None
        if self.task:
            # Of one that is gone `receive` hears what became of it, its last words first.
            with suppress(ConnectionError):
                self.pipe.send(self.task)

    def receive(self) -> int | Done:
        try:
            message = self.pipe.recv()
        except (EOFError, OSError) as error:  # an end of file in the middle of a message is a plain OSError
            self._process.join()
            raise self._died(self._process.exitcode) from error
        if isinstance(message, ConfigError):
            raise message
        return message

    def stop(self) -> None:
        """What it has not finished is under another name and made anew by the next run."""
        self.pipe.close()
        self._process.kill()
        self._process.join()

    def _died(self, code: int | None) -> ConfigError:
        how = signal.Signals(-code).name if code and code < 0 else f"exit code {code}"
        file = self.task.file if self.task else ""
        message = f"a worker died ({how}) at {file}"
        return ConfigError(
            [ConfigProblem("--workers", message, "run the command again: it goes on from here; fewer need less memory")]
        )


def _work(pipe: Connection[Any, Any], settings: Settings) -> None:
    # An interrupt from the keyboard reaches the whole process group; the command decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        tokenizer = tokenizer_for(settings.tokenizer)
        folder = Path(settings.folder)
        while True:
            task: Task = pipe.recv()
            counter = _Counter(pipe)
            try:
                shard = finished(folder, task, tokenizer.dtype)
                made = shard or make(folder, task, tokenizer, settings.text_key, counter.add)
            except ConnectionError:
                raise
            except OSError as error:
                fix = "mend that and run the command again: it goes on from here"
                raise ConfigError([ConfigProblem(str(folder / task.file), str(error), fix)]) from error
            pipe.send(task.size - counter.sent)
            pipe.send(Done(task, made, reused=shard is not None))
    except ConfigError as error:
        pipe.send(error)
    except (EOFError, ConnectionError):
        return  # nobody is there to read the rest


class _Counter:
    def __init__(self, pipe: Connection[Any, Any]) -> None:
        self._pipe = pipe
        self._held = 0
        self.sent = 0

    def add(self, size: int) -> None:
        self._held += size
        if self._held >= _REPORT_BYTES:
            self._pipe.send(self._held)
            self.sent += self._held
            self._held = 0
