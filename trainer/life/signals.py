"""Whatever can tell a run to stop: signals, a stop file, the job's time limit. Noted here, never acted on."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any

from trainer.life.reason import Reason, from_text

_SIGNALS = {
    signal.SIGTERM: Reason.TERMINATED,
    # NCCL and some clusters use one of them; whichever comes means the same.
    signal.SIGUSR1: Reason.WARNED,
    signal.SIGUSR2: Reason.WARNED,
    signal.SIGINT: Reason.ASKED,
}
_POLL_S = 1.0
_SAME_INTERRUPT_S = 1.0
_LEAST_MARGIN_S = 60.0


class Stop:
    """Only takes note: a save inside a signal handler would meet a step half done.

    Python runs handlers between two instructions of the main thread, which may sit in a collective for minutes. So the
    signal's number also goes through a pipe to a thread. Only rank 0 looks at the file and the clock, so that a shared
    filesystem has one reader; the vote tells the others.
    """

    def __init__(self, folder: Path, rank: int, margin_s: float = 0.0) -> None:
        self.file = folder / "stop"
        self.words = ""
        self._first = rank == 0
        self._margin_s = margin_s
        self._fixed_margin = margin_s > 0
        self._reason: Reason | None = None
        self._terminated = False
        self._interrupted_at = 0.0
        self._limits = _job_times(os.environ)
        self._handlers: dict[int, Any] = {}
        self._old_wakeup = -1
        self._ear, self._mouth = socket.socketpair()
        self._thread = threading.Thread(target=self._watch, name="stop", daemon=True)

    def listen(self) -> Stop:
        """Signals can only be caught from the main thread; elsewhere (a notebook's worker) file and clock remain."""
        if threading.current_thread() is threading.main_thread():
            self._mouth.setblocking(False)
            self._old_wakeup = signal.set_wakeup_fd(self._mouth.fileno(), warn_on_full_buffer=False)
            self._handlers = {number: signal.signal(number, self._handle) for number in _SIGNALS}
        self._thread.start()
        return self

    def reason(self) -> Reason | None:
        return self._reason

    @property
    def terminated(self) -> bool:
        """TERM has come, whatever else is known by now: somebody is about to kill this process."""
        return self._terminated

    def pace(self, save_s: float, step_s: float) -> None:
        """How long a save and a step take; from them follows how early before the time limit to stop."""
        if not self._fixed_margin:
            self._margin_s = margin(save_s, step_s)

    def close(self) -> None:
        """Give the signals back. A stop file that was obeyed is taken away, or the next start would obey it again."""
        if self._handlers:
            signal.set_wakeup_fd(self._old_wakeup)
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._mouth.close()
        self._thread.join()
        self._ear.close()
        if self._first and self._reason is not None:
            self.file.unlink(missing_ok=True)

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        self._note(_SIGNALS[signal.Signals(number)])
        if number != signal.SIGINT:
            return
        # Somebody who asks twice does not want to wait for the save. torchrun passes on what the terminal has already
        # sent to everybody, so two at once are one.
        if self._interrupted_at and time.monotonic() - self._interrupted_at > _SAME_INTERRUPT_S:
            raise KeyboardInterrupt
        self._interrupted_at = self._interrupted_at or time.monotonic()

    def _note(self, reason: Reason) -> None:
        self._reason = max(self._reason or reason, reason)
        self._terminated = self._terminated or reason is Reason.TERMINATED

    def _watch(self) -> None:
        self._ear.settimeout(_POLL_S if self._first else None)
        while True:
            try:
                numbers = self._ear.recv(64)
            except TimeoutError:
                self._look_at_file()
                self._look_at_clock()
                continue
            if not numbers:
                return
            for number in _SIGNALS.keys() & set(numbers):
                self._note(_SIGNALS[number])

    def _look_at_file(self) -> None:
        try:
            self.words = self.file.read_text(encoding="utf-8").strip()
        except OSError:
            return
        self._note(from_text(self.words))

    def _look_at_clock(self) -> None:
        if self._limits is not None and time.time() >= stop_at(*self._limits, self._margin_s or _LEAST_MARGIN_S):
            self._note(Reason.TIME_LIMIT)


def margin(save_s: float, step_s: float) -> float:
    """Two saves, because a shared filesystem is slow when everybody stops at once, and the steps of the vote."""
    return max(_LEAST_MARGIN_S, 2 * save_s + 3 * step_s + 30)


def stop_at(begin: float, end: float, margin_s: float) -> float:
    """A margin longer than half of the job would leave no time to work in."""
    return end - min(margin_s, (end - begin) / 2)


def _job_times(environment: Mapping[str, str]) -> tuple[float, float] | None:
    end = environment.get("SLURM_JOB_END_TIME", "")
    if not end.isdigit():
        return None
    begin = environment.get("SLURM_JOB_START_TIME", "")
    return (float(begin) if begin.isdigit() else time.time()), float(end)
