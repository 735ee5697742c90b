"""Record requests to stop a run: signals, a stop file, the job's time limit. The step loop obeys them."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Mapping
from enum import IntEnum
from pathlib import Path
from types import FrameType
from typing import Any

_POLL_S = 1.0
_SAME_INTERRUPT_S = 1.0
_MIN_MARGIN_S = 60.0


class StopReason(IntEnum):
    """The reason why a run has to stop.

    Reasons are ordered, so that ranks can agree on the largest: a person's request outweighs one of the cluster, and a
    specific reason outweighs a bare signal.
    """

    TERMINATED = 1
    WARNED = 2
    TIME_LIMIT = 3
    PREEMPTED = 4
    REQUESTED = 5
    CANCELLED = 6
    FOLDER_LOST = 7

    @property
    def requeue(self) -> bool:
        """Whether the run should be requeued, because nobody asked for its end."""
        return self < StopReason.REQUESTED

    @property
    def is_preemption(self) -> bool:
        """Whether the nodes may be taken away before the job's time is over; the usual signal for that is SIGTERM."""
        return self in (StopReason.TERMINATED, StopReason.PREEMPTED)

    @property
    def text(self) -> str:
        """The reason as it appears in the log and in the stop file."""
        return _TEXT[self]

    @classmethod
    def from_text(cls, text: str) -> StopReason:
        """Return the reason that a stop file names; any other text means that a person requested the stop."""
        by_text = {reason.text: reason for reason in cls if reason is not cls.FOLDER_LOST}
        return by_text.get(text.strip().lower(), cls.REQUESTED)


_TEXT = {
    StopReason.TERMINATED: "terminated by a signal",
    StopReason.WARNED: "warned by a signal",
    StopReason.TIME_LIMIT: "time limit",
    StopReason.PREEMPTED: "preempted",
    StopReason.REQUESTED: "stop requested",
    StopReason.CANCELLED: "cancelled",
    StopReason.FOLDER_LOST: "another process has taken over the run folder",
}

_SIGNALS = {
    signal.SIGTERM: StopReason.TERMINATED,
    # Some libraries and clusters reserve one of these two, so both are accepted.
    signal.SIGUSR1: StopReason.WARNED,
    signal.SIGUSR2: StopReason.WARNED,
    signal.SIGINT: StopReason.REQUESTED,
}


class StopListener:
    """A recorder of stop requests that does not act on them: a save inside a signal handler would save half a step.

    Python runs signal handlers only in the main thread, which may be inside a collective for minutes. So the signal's
    number also goes through a socket to a thread. Only rank 0 reads the stop file and the clock, so that a shared
    filesystem has a single reader; the vote informs the other ranks.
    """

    def __init__(self, folder: Path, rank: int, margin_s: float = 0.0) -> None:
        """`margin_s` is how long before the time limit to stop; 0 derives it from the times of saves and steps."""
        self.file = folder / "stop"
        self.note = ""
        """The text of the stop file, if there is one."""
        self._is_first = rank == 0
        self._margin_s = margin_s
        self._is_margin_fixed = margin_s > 0
        self._reason: StopReason | None = None
        self._is_terminated = False
        self._interrupted_at = 0.0
        self._job_times = _read_job_times(os.environ)
        self._old_handlers: dict[int, Any] = {}
        self._old_wakeup = -1
        self._receiver, self._sender = socket.socketpair()
        self._thread = threading.Thread(target=self._watch, name="stop", daemon=True)

    def listen(self) -> StopListener:
        """Start listening and return self.

        Signals can be caught only in the main thread; elsewhere, such as in a notebook's worker, the stop file and the
        time limit still work.
        """
        if threading.current_thread() is threading.main_thread():
            self._sender.setblocking(False)
            self._old_wakeup = signal.set_wakeup_fd(self._sender.fileno(), warn_on_full_buffer=False)
            self._old_handlers = {number: signal.signal(number, self._handle) for number in _SIGNALS}
        self._thread.start()
        return self

    @property
    def reason(self) -> StopReason | None:
        """The strongest stop request so far."""
        return self._reason

    @property
    def is_terminated(self) -> bool:
        """Whether SIGTERM has arrived, even if another reason is stronger: the process is about to be killed."""
        return self._is_terminated

    def request(self, reason: StopReason) -> None:
        """Record a request of another part of this process."""
        self._record(reason)

    def set_pace(self, save_s: float, delay_s: float) -> None:
        """Update the durations from which the margin before the time limit is derived.

        `delay_s` is the time from a stop request until all ranks stop training.
        """
        if not self._is_margin_fixed:
            self._margin_s = compute_margin_s(save_s, delay_s)

    def close(self) -> None:
        """Restore the signal handlers; delete a stop file that was obeyed, so that the next start does not obey it."""
        if self._old_handlers:
            signal.set_wakeup_fd(self._old_wakeup)
        for number, handler in self._old_handlers.items():
            signal.signal(number, handler)
        self._sender.close()
        self._thread.join()
        self._receiver.close()
        if self._is_first and self._reason not in (None, StopReason.FOLDER_LOST):
            self.file.unlink(missing_ok=True)

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        self._record(_SIGNALS[signal.Signals(number)])
        if number != signal.SIGINT:
            return
        # A second interrupt means that the user does not want to wait for the save. The terminal sends an interrupt to
        # every process and torchrun forwards it again, so two interrupts within a second count as one.
        if self._interrupted_at and time.monotonic() - self._interrupted_at > _SAME_INTERRUPT_S:
            raise KeyboardInterrupt
        self._interrupted_at = self._interrupted_at or time.monotonic()

    def _record(self, reason: StopReason) -> None:
        self._reason = max(self._reason or reason, reason)
        self._is_terminated = self._is_terminated or reason is StopReason.TERMINATED

    def _watch(self) -> None:
        self._receiver.settimeout(_POLL_S if self._is_first else None)
        while True:
            try:
                numbers = self._receiver.recv(64)
            except TimeoutError:
                self._check_file()
                self._check_clock()
                continue
            if not numbers:
                return
            for number in _SIGNALS.keys() & set(numbers):
                self._record(_SIGNALS[number])

    def _check_file(self) -> None:
        try:
            # Whatever its bytes are, the file is a request to stop.
            self.note = self.file.read_text(encoding="utf-8", errors="replace").strip()
        except OSError:
            return
        self._record(StopReason.from_text(self.note))

    def _check_clock(self) -> None:
        if self._job_times is not None and time.time() >= compute_stop_time(
            *self._job_times, self._margin_s or _MIN_MARGIN_S
        ):
            self._record(StopReason.TIME_LIMIT)


def compute_margin_s(save_s: float, delay_s: float) -> float:
    """Return how many seconds before the time limit to stop.

    This allows for two saves, because a shared filesystem is slow when all jobs stop at once.
    """
    return max(_MIN_MARGIN_S, 2 * save_s + delay_s + 30)


def explain_slow_stop(warning_s: float, delay_s: float, save_s: float) -> str:
    """Return why a run cannot stop within the cluster's warning and how to fix it, or an empty string if it can."""
    if not warning_s or delay_s + save_s <= warning_s:
        return ""
    return (
        f"a stop takes about {delay_s:.0f} s until the ranks stop training and {save_s:.0f} s for the save, but the "
        f"cluster warns {warning_s:g} s ahead (stop.warning_s): the last save may be lost. Use a smaller batch.micro, "
        "a faster filesystem or more ranks, or let the cluster warn earlier (sbatch --signal, GraceTime) and set "
        "stop.warning_s"
    )


def compute_stop_time(begin: float, end: float, margin_s: float) -> float:
    """Return the time at which a job from `begin` to `end` has to stop; the margin is at most half of the job."""
    return end - min(margin_s, (end - begin) / 2)


def _read_job_times(environment: Mapping[str, str]) -> tuple[float, float] | None:
    end = environment.get("SLURM_JOB_END_TIME", "")
    if not end.isdigit():
        return None
    begin = environment.get("SLURM_JOB_START_TIME", "")
    return (float(begin) if begin.isdigit() else time.time()), float(end)
