"""Run phases concurrently, each as soon as its dependencies are done, and record the time of each."""

import json
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from queue import SimpleQueue

from setup.run import StoppedError, stop_on

Tasks = Mapping[str, Callable[[], None]]


def run_concurrently(tasks: Tasks, dependencies: Mapping[str, Collection[str]]) -> dict[str, Exception]:
    """Run every task in a thread of its own, after the tasks it depends on; return the errors by task.

    Dependencies that are not among the tasks are ignored. After the first error no task is started, and running tasks
    are stopped: their commands and all children end. An interrupt (Ctrl-C) stops them in the same way.
    """
    stop = threading.Event()
    results: SimpleQueue[tuple[str, Exception | None]] = SimpleQueue()
    waiting, done, threads = dict(tasks), set[str](), dict[str, threading.Thread]()
    errors: dict[str, Exception] = {}

    def work(name: str, task: Callable[[], None]) -> None:
        stop_on(stop)
        try:
            task()
        except Exception as error:
            results.put((name, error))
        else:
            results.put((name, None))

    def start_ready() -> None:
        for name in list(waiting):
            if all(other in done or other not in tasks for other in dependencies.get(name, ())):
                threads[name] = threading.Thread(target=work, args=(name, waiting.pop(name)), name=name)
                threads[name].start()

    try:
        start_ready()
        while len(threads) > len(done) + len(errors):
            name, error = results.get()
            if error is None:
                done.add(name)
            else:
                errors[name] = error
                stop.set()
            if not errors:
                start_ready()
    finally:
        stop.set()
        for thread in threads.values():
            thread.join()
    if waiting and not errors:
        raise ValueError(f"these phases wait for each other: {', '.join(waiting)}")
    return errors


@dataclass
class PhaseResult:
    """How a phase ended ("done", "cached", "failed" or "stopped"), and its duration in seconds."""

    phase: str
    state: str = "failed"
    seconds: float = 0.0


@dataclass
class Record:
    """The results of one run of setup: printed at its end, and written as JSON for the demo and the benchmarks."""

    started: datetime = field(default_factory=lambda: datetime.now(UTC))
    results: list[PhaseResult] = field(default_factory=list)
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._begin = self.clock()

    @contextmanager
    def measure(self, phase: str) -> Iterator[PhaseResult]:
        """Measure the phase that runs in the `with` block, which sets the state; an exception leaves it "failed"."""
        result = PhaseResult(phase)
        self.results.append(result)
        begin = self.clock()
        try:
            yield result
        except (StoppedError, KeyboardInterrupt):
            result.state = "stopped"
            raise
        finally:
            result.seconds = round(self.clock() - begin, 3)

    @property
    def wall_seconds(self) -> float:
        return round(self.clock() - self._begin, 3)

    def phases_in(self, state: str) -> list[str]:
        """Return the names of the phases that ended in a state."""
        return [result.phase for result in self.results if result.state == state]

    def summary(self) -> str:
        """Return the table of all phases with the wall time, or one line if there was nothing to do."""
        if all(result.state == "cached" for result in self.results if result.phase != "preflight"):
            return f"setup: everything is up to date ({self.wall_seconds:.1f} s)"
        rows = [f"{result.phase:<10} {result.seconds:7.1f}  {result.state}" for result in self.results]
        return "\n".join([f"{'phase':<10} seconds  state", *rows, f"{'wall time':<10} {self.wall_seconds:7.1f}"])

    def write(self, path: Path) -> None:
        """Write the record as JSON. `seconds` is the wall time, less than the sum of phases that ran concurrently."""
        content = {
            "started": self.started.isoformat(timespec="seconds"),
            "seconds": self.wall_seconds,
            "phases": {result.phase: {"seconds": result.seconds, "state": result.state} for result in self.results},
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(".new")
        unfinished.write_text(json.dumps(content, indent=2) + "\n")
        unfinished.rename(path)


def started_engine(path: Path) -> bool:
    """Return whether the run that wrote this record had to start the Docker engine."""
    try:
        return bool(json.loads(path.read_text())["phases"]["docker"]["state"] == "done")
    except (OSError, ValueError, KeyError):
        return False
