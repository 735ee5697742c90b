"""What tells a run to stop, in this very process: signals, the stop file, the time limit."""

from __future__ import annotations

import hashlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from trainer.life.reason import Reason, from_text
from trainer.life.signals import Stop, margin, stop_at

Listen = Callable[..., Stop]


@pytest.fixture
def listen(tmp_path: Path) -> Iterator[Listen]:
    made: list[Stop] = []

    def make(rank: int = 0, margin_s: float = 0.0) -> Stop:
        made.append(Stop(tmp_path, rank, margin_s).listen())
        return made[-1]

    yield make
    for stop in reversed(made):
        stop.close()


def reason_within(stop: Stop, seconds: float) -> Reason | None:
    end = time.monotonic() + seconds
    while stop.reason() is None and time.monotonic() < end:
        time.sleep(0.01)
    return stop.reason()


@pytest.mark.parametrize(
    ("number", "reason"),
    [
        (signal.SIGTERM, Reason.TERMINATED),
        (signal.SIGUSR1, Reason.WARNED),
        (signal.SIGUSR2, Reason.WARNED),
        (signal.SIGINT, Reason.ASKED),
    ],
)
def test_a_signal_is_noted_on_any_rank_and_nothing_else_happens(listen: Listen, number: int, reason: Reason) -> None:
    stop = listen(rank=3)
    assert stop.reason() is None
    os.kill(os.getpid(), number)
    assert reason_within(stop, 60) is reason
    assert stop.terminated == (number == signal.SIGTERM)


def test_a_signal_is_noted_while_the_main_thread_is_inside_a_long_call(listen: Listen) -> None:
    stop = listen(rank=1)
    done = threading.Event()
    noted: list[float] = []

    def look() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        reason_within(stop, 20)
        noted.append(time.monotonic())
        assert not done.is_set()

    thread = threading.Thread(target=look)
    thread.start()
    # Seconds in C without the interpreter's lock, as in a collective: no Python handler runs.
    hashlib.pbkdf2_hmac("sha256", b"", b"", 1_500_000)
    done.set()
    ended = time.monotonic()
    thread.join()
    assert stop.reason() is Reason.TERMINATED
    assert noted[0] < ended


def test_the_second_interrupt_interrupts_but_an_echo_of_the_first_does_not(listen: Listen) -> None:
    stop = listen()
    os.kill(os.getpid(), signal.SIGINT)
    os.kill(os.getpid(), signal.SIGINT)
    assert reason_within(stop, 60) is Reason.ASKED
    time.sleep(1.1)
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize(
    ("words", "reason"),
    [("time limit", Reason.TIME_LIMIT), ("Preempted", Reason.PREEMPTED), ("", Reason.ASKED), ("bye", Reason.ASKED)],
)
def test_the_stop_file_gives_the_reason(listen: Listen, tmp_path: Path, words: str, reason: Reason) -> None:
    stop = listen()
    (tmp_path / "stop").write_text(f"{words}\n")
    assert reason_within(stop, 60) is reason
    assert stop.words == words


def test_a_stop_file_is_taken_away_once_it_was_obeyed(tmp_path: Path) -> None:
    (tmp_path / "stop").write_text("enough")
    stop = Stop(tmp_path, rank=0).listen()
    assert reason_within(stop, 60) is Reason.ASKED
    stop.close()
    assert not (tmp_path / "stop").exists()


def test_only_the_first_rank_looks_at_the_file(listen: Listen, tmp_path: Path) -> None:
    (tmp_path / "stop").write_text("enough")
    assert reason_within(listen(rank=1), 1.5) is None


def test_the_stronger_reason_wins_in_any_order(listen: Listen, tmp_path: Path) -> None:
    stop = listen()
    os.kill(os.getpid(), signal.SIGTERM)
    assert reason_within(stop, 60) is Reason.TERMINATED
    (tmp_path / "stop").write_text("cancelled")
    end = time.monotonic() + 60
    while stop.reason() is Reason.TERMINATED and time.monotonic() < end:
        time.sleep(0.05)
    os.kill(os.getpid(), signal.SIGUSR1)
    time.sleep(0.1)
    assert stop.reason() is Reason.CANCELLED
    assert stop.terminated


def test_signals_are_given_back(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    Stop(tmp_path, rank=0).listen().close()
    assert signal.getsignal(signal.SIGTERM) is before


def test_the_time_limit_of_the_job_is_seen_in_time(listen: Listen, monkeypatch: pytest.MonkeyPatch) -> None:
    now = int(time.time())
    monkeypatch.setenv("SLURM_JOB_START_TIME", str(now - 1000))
    monkeypatch.setenv("SLURM_JOB_END_TIME", str(now + 100))
    assert reason_within(listen(margin_s=10), 1.5) is None
    early = listen()
    early.pace(save_s=40, step_s=1)
    assert reason_within(early, 60) is Reason.TIME_LIMIT


@pytest.mark.parametrize(
    ("save_s", "step_s", "expected"), [(0, 0, 60), (10, 1, 60), (100, 2, 236)], ids=["least", "still", "slow save"]
)
def test_the_margin_covers_two_saves_and_the_vote(save_s: float, step_s: float, expected: float) -> None:
    assert margin(save_s, step_s) == expected


def test_a_short_job_keeps_half_of_its_time() -> None:
    assert stop_at(1000, 1060, 120) == 1030
    assert stop_at(1000, 9000, 120) == 8880


def test_only_what_a_machine_announces_comes_back_by_itself() -> None:
    assert {reason for reason in Reason if reason.requeue} == {
        Reason.TERMINATED,
        Reason.WARNED,
        Reason.TIME_LIMIT,
        Reason.PREEMPTED,
    }
    assert all(from_text(reason.text) is reason for reason in Reason)
