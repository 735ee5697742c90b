"""Send metrics to experiment trackers from a thread of their own, so that no step waits for a network."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from trainer.config.errors import ConfigError, ConfigProblem
from trainer.config.load import to_dict
from trainer.config.schema import Config
from trainer.metrics.mlflow_tracker import MlflowTracker
from trainer.metrics.wandb_tracker import WandbTracker

_MAX_WAITING = 1000
_CLOSE_TIMEOUT_S = 15.0
_PACKAGES = {"wandb": "wandb", "mlflow": "mlflow"}


class Tracker(Protocol):
    """A service that records the metrics of a run. Any call may raise, and may wait for a network."""

    @property
    def setting(self) -> str:
        """The setting that turns it on, for messages."""
        ...

    def open(self) -> str:
        """Start or continue the run, and return a message for the user."""
        ...

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Record the metrics of a step."""
        ...

    def close(self, outcome: str) -> None:
        """Send everything that is waiting, and end the run."""
        ...


def check_packages(config: Config) -> None:
    """Raise ConfigError if a tracker is turned on whose package is not installed."""
    problems = []
    for name, package in _PACKAGES.items():
        value = getattr(config.metrics, name)
        if value != "none" and find_spec(package) is None:
            fix = f"`pip install {package}` (on a cluster: docs/trainer.md#measurement), or use none"
            message = f"{value}, but the package {package} is not installed"
            problems.append(ConfigProblem(f"metrics.{name}", message, fix))
    if problems:
        raise ConfigError(problems)


def make_trackers(config: Config, folder: Path, say: Callable[[str], None]) -> list[BackgroundTracker]:
    """Return the trackers that are turned on."""
    metrics, settings = config.metrics, to_dict(config)
    trackers: list[Tracker] = []
    if metrics.wandb != "none":
        trackers.append(WandbTracker(folder, metrics.wandb, metrics.project, config.name, settings))
    if metrics.mlflow != "none":
        trackers.append(MlflowTracker(folder, metrics.mlflow, metrics.project, config.name, settings))
    return [BackgroundTracker(tracker, say) for tracker in trackers]


def close_trackers(trackers: Sequence[BackgroundTracker], outcome: str) -> None:
    """Let all trackers send what is waiting, for a limited time together: the job may be about to be killed."""
    deadline = time.monotonic() + _CLOSE_TIMEOUT_S
    for tracker in trackers:
        tracker.end(outcome)
    for tracker in trackers:
        tracker.wait(deadline)


class BackgroundTracker:
    """A tracker with a queue and a thread. An error is printed once and ends the tracker, but not the run."""

    def __init__(self, tracker: Tracker, say: Callable[[str], None]) -> None:
        self._tracker = tracker
        self._say = say
        self._waiting: queue.Queue[tuple[int, dict[str, float]] | None] = queue.Queue(_MAX_WAITING)
        self._outcome = ""
        self._has_dropped = False
        self._thread = threading.Thread(target=self._work, name=tracker.setting, daemon=True)
        self._thread.start()

    def log(self, step: int, values: Mapping[str, Any]) -> None:
        """Queue the numbers among the values; if the tracker is far behind, they are dropped."""
        numbers = {key: float(value) for key, value in values.items() if isinstance(value, int | float)}
        try:
            self._waiting.put_nowait((step, numbers))
        except queue.Full:
            if not self._has_dropped:
                self._say(f"{self._tracker.setting}: the tracker is too slow; it misses steps from {step} on")
            self._has_dropped = True

    def end(self, outcome: str) -> None:
        """Tell the tracker that nothing follows; if its queue is full, the oldest metrics make room."""
        self._outcome = outcome
        while True:
            try:
                self._waiting.put_nowait(None)
            except queue.Full:
                with suppress(queue.Empty):
                    self._waiting.get_nowait()
            else:
                return

    def wait(self, deadline: float) -> None:
        """Wait until the tracker has sent everything, or until the deadline on the monotonic clock."""
        self._thread.join(max(deadline - time.monotonic(), 0.0))
        if self._thread.is_alive():
            setting = self._tracker.setting
            fix = f"metrics/ in the run folder has all of it; without a network, set {setting} to offline"
            self._say(f"{setting}: not everything was sent within {_CLOSE_TIMEOUT_S:g} s; {fix}")

    def _work(self) -> None:
        try:
            self._say(f"{self._tracker.setting}: {self._tracker.open()}")
            while (item := self._waiting.get()) is not None:
                self._tracker.log(*item)
            self._tracker.close(self._outcome)
        except Exception as error:  # a tracker must never end the run
            text = " ".join(f"{type(error).__name__}: {error}".split())
            self._say(f"{self._tracker.setting}: {text}; training continues without it")
            while self._waiting.get() is not None:
                pass
