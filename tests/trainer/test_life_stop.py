"""Stop requests, received in this process: signals, the stop file, the time limit."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from trainer.life.outcome import Code, choose_code
from trainer.life.stop import StopListener, StopReason, compute_margin_s, compute_stop_time
from trainer.loop.end import End

Listen = Callable[..., StopListener]


@pytest.fixture
def listen(tmp_path: Path) -> Iterator[Listen]:
    listeners: list[StopListener] = []

    def start(rank: int = 0, margin_s: float = 0.0) -> StopListener:
        listeners.append(StopListener(tmp_path, rank, margin_s).listen())
        return listeners[-1]

    yield start
    for stop in reversed(listeners):
        stop.close()


def wait_for_reason(stop: StopListener, seconds: float) -> StopReason | None:
    end = time.monotonic() + seconds
    while stop.reason is None and time.monotonic() < end:
        time.sleep(0.01)
    return stop.reason


@pytest.mark.parametrize(
    ("number", "reason"),
    [
        (signal.SIGTERM, StopReason.TERMINATED),
        (signal.SIGUSR1, StopReason.WARNED),
        (signal.SIGUSR2, StopReason.WARNED),
        (signal.SIGINT, StopReason.REQUESTED),
    ],
)
def test_a_signal_is_recorded_on_any_rank_and_nothing_else_happens(
    listen: Listen, number: int, reason: StopReason
) -> None:
    stop = listen(rank=3)
    assert stop.reason is None
    os.kill(os.getpid(), number)
    assert wait_for_reason(stop, 60) is reason
    assert stop.is_terminated == (number == signal.SIGTERM)


def test_a_signal_is_recorded_during_a_long_call_of_the_main_thread(listen: Listen) -> None:
    stop = listen(rank=1)
    libc, mutex = ctypes.CDLL(None), ctypes.create_string_buffer(64)
    is_locked = threading.Event()
    recorded: list[StopReason | None] = []

    def send_and_wait() -> None:
        libc.pthread_mutex_lock(mutex)
        is_locked.set()
        time.sleep(0.2)
        os.kill(os.getpid(), signal.SIGTERM)
        recorded.append(wait_for_reason(stop, 60))
        libc.pthread_mutex_unlock(mutex)

    thread = threading.Thread(target=send_and_wait)
    thread.start()
    is_locked.wait()
    # In C without the interpreter's lock, as in a collective: no Python handler runs, and a signal does not end it.
    libc.pthread_mutex_lock(mutex)
    thread.join()
    assert recorded == [StopReason.TERMINATED]


def test_a_second_interrupt_raises_but_an_echo_of_the_first_does_not(
    listen: Listen, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop = listen()
    monkeypatch.setattr("trainer.life.stop._SAME_INTERRUPT_S", 240.0)
    os.kill(os.getpid(), signal.SIGINT)
    os.kill(os.getpid(), signal.SIGINT)
    assert wait_for_reason(stop, 60) is StopReason.REQUESTED
    monkeypatch.setattr("trainer.life.stop._SAME_INTERRUPT_S", 0.0)
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize(
    ("note", "reason"),
    [
        ("time limit", StopReason.TIME_LIMIT),
        ("Preempted", StopReason.PREEMPTED),
        ("", StopReason.REQUESTED),
        ("bye", StopReason.REQUESTED),
    ],
)
def test_the_stop_file_gives_the_reason(listen: Listen, tmp_path: Path, note: str, reason: StopReason) -> None:
    stop = listen()
    (tmp_path / "stop").write_text(f"{note}\n")
    assert wait_for_reason(stop, 60) is reason
    assert stop.note == note


def test_a_stop_file_that_is_not_text_stops_the_run_too(listen: Listen, tmp_path: Path) -> None:
    stop = listen()
    (tmp_path / "stop").write_bytes(b"gen\xfcgt\n")
    assert wait_for_reason(stop, 60) is StopReason.REQUESTED
    assert stop.note == "gen\ufffdgt"


def test_a_stop_file_is_deleted_once_it_was_obeyed(tmp_path: Path) -> None:
    (tmp_path / "stop").write_text("enough")
    stop = StopListener(tmp_path, rank=0).listen()
    assert wait_for_reason(stop, 60) is StopReason.REQUESTED
    stop.close()
    assert not (tmp_path / "stop").exists()


def test_only_rank_0_reads_the_stop_file(listen: Listen, tmp_path: Path) -> None:
    (tmp_path / "stop").write_text("enough")
    assert wait_for_reason(listen(rank=1), 1.5) is None


def test_the_stronger_reason_wins_in_any_order(listen: Listen, tmp_path: Path) -> None:
    stop = listen()
    os.kill(os.getpid(), signal.SIGTERM)
    assert wait_for_reason(stop, 60) is StopReason.TERMINATED
    (tmp_path / "stop").write_text("cancelled")
    end = time.monotonic() + 60
    while stop.reason is StopReason.TERMINATED and time.monotonic() < end:
        time.sleep(0.05)
    os.kill(os.getpid(), signal.SIGUSR1)
    time.sleep(0.1)
    assert stop.reason is StopReason.CANCELLED
    assert stop.is_terminated


def test_close_restores_the_signal_handlers(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    StopListener(tmp_path, rank=0).listen().close()
    assert signal.getsignal(signal.SIGTERM) is before


def test_the_listener_stops_before_the_time_limit_of_the_job(listen: Listen, monkeypatch: pytest.MonkeyPatch) -> None:
    now = int(time.time())
    monkeypatch.setenv("SLURM_JOB_START_TIME", str(now - 1000))
    monkeypatch.setenv("SLURM_JOB_END_TIME", str(now + 100))
    assert wait_for_reason(listen(margin_s=10), 1.5) is None
    early = listen()
    early.set_pace(save_s=40, delay_s=1)
    assert wait_for_reason(early, 60) is StopReason.TIME_LIMIT


@pytest.mark.parametrize(
    ("save_s", "delay_s", "expected"),
    [(0, 0, 60), (10, 3, 60), (100, 6, 236)],
    ids=["min", "short save", "slow save"],
)
def test_the_margin_covers_two_saves_and_the_vote(save_s: float, delay_s: float, expected: float) -> None:
    assert compute_margin_s(save_s, delay_s) == expected


def test_the_margin_is_at_most_half_of_a_short_job() -> None:
    assert compute_stop_time(1000, 1060, 120) == 1030
    assert compute_stop_time(1000, 9000, 120) == 8880


def test_only_stops_requested_by_the_cluster_are_requeued() -> None:
    assert {reason for reason in StopReason if reason.requeue} == {
        StopReason.TERMINATED,
        StopReason.WARNED,
        StopReason.TIME_LIMIT,
        StopReason.PREEMPTED,
    }
    assert all(StopReason.from_text(r.text) is r for r in StopReason if r is not StopReason.FOLDER_LOST)
    # Only the lock can say that. A person who writes it asks for a stop, with a save.
    assert StopReason.from_text(StopReason.FOLDER_LOST.text) is StopReason.REQUESTED


def test_a_run_that_saves_nothing_is_requeued_only_if_it_was_preempted() -> None:
    assert {reason for reason in StopReason if choose_code(reason) is Code.REQUEUE} == {
        reason for reason in StopReason if reason.requeue
    }
    assert {reason for reason in StopReason if choose_code(reason, can_resume=False) is Code.REQUEUE} == {
        StopReason.TERMINATED,
        StopReason.PREEMPTED,
    }
    end = End.after_stop(StopReason.TIME_LIMIT, "", can_resume=False)
    assert end.code is Code.STOPPED
    assert end.reason == "time limit; not requeued: checkpoint.every=never, so the run would start over"
    assert End.after_stop(StopReason.REQUESTED, "enough", can_resume=False).reason == "enough"
