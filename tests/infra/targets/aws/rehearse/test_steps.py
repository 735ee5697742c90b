"""Steps of a rehearsal: which job it runs, when that has ended, and how a command is interrupted."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from infra.home import Home
from infra.targets.aws.rehearse.cleanup import try_each
from infra.targets.aws.rehearse.rehearsal import choose_group, interrupt_on_signals, run_command
from infra.targets.aws.rehearse.rehearsed_slurm import has_ended, limit_job_s
from infra.targets.registry import read_spec
from tests.infra.targets.aws.rehearse import run_rehearsal


def test_the_job_runs_in_the_group_with_the_most_nodes() -> None:
    spec = read_spec(Home.of({}).stack("aws-full").file)
    small = spec.groups["h200"].model_copy(update={"count": 1})
    assert choose_group(spec.model_copy(update={"groups": {"first": small, **spec.groups}}), 2)[0] != "first"
    assert choose_group(spec, 2) == ("burst", 2)
    assert choose_group(spec, 64) == ("burst", 16)
    assert choose_group(spec.model_copy(update={"groups": {"only": small}}), 2) == ("only", 1)


@pytest.mark.parametrize("state", ["COMPLETED", "CANCELLED by 0", "BOOT_FAIL", "DEADLINE", "PREEMPTED", "NODE_FAIL"])
def test_final_states_end_the_wait(state: str) -> None:
    assert has_ended(f"{state}|0:0|gpu-1")


@pytest.mark.parametrize("state", ["", "PENDING", "RUNNING", "REQUEUED", "CONFIGURING"])
def test_other_states_do_not(state: str) -> None:
    assert not has_ended(state)


def test_a_job_is_given_up_before_the_test_is() -> None:
    assert limit_job_s(20) < run_rehearsal.TIMEOUT_S
    assert limit_job_s(1) > limit_job_s(20)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_signals_that_end_a_process_interrupt_it_instead(number: signal.Signals) -> None:
    def clean_up_after_signal() -> None:
        with interrupt_on_signals():
            try:
                signal.raise_signal(number)
            finally:
                signal.raise_signal(signal.SIGTERM)  # During the cleanup it has no effect.
                cleaned.append(number)

    # Under nohup this process ignores SIGHUP.
    earlier = signal.signal(number, signal.SIG_DFL)
    cleaned: list[int] = []
    try:
        with pytest.raises(KeyboardInterrupt):
            clean_up_after_signal()
        assert cleaned == [number]
        assert signal.getsignal(number) == signal.SIG_DFL
    finally:
        signal.signal(number, earlier)


def test_an_ignored_signal_stays_ignored() -> None:
    earlier = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with interrupt_on_signals():
            signal.raise_signal(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, earlier)


COUNT_INTERRUPTS = """
import signal, sys, time
count = 0
def interrupt(*_):
    global count
    count += 1
signal.signal(signal.SIGINT, interrupt)
print("ready", flush=True)
while not count:
    time.sleep(0.01)
time.sleep(0.3)
open(sys.argv[1], "w").write(str(count))
"""


def test_a_command_is_interrupted_once_and_ends_in_order(tmp_path: Path) -> None:
    result = tmp_path / "count"

    def interrupt(_text: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_command([sys.executable, "-c", COUNT_INTERRUPTS, str(result)], os.environ, tmp_path, interrupt)
    assert result.read_text() == "1"


def test_a_command_that_ignores_the_interrupt_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("infra.targets.aws.rehearse.rehearsal._INTERRUPT_TIMEOUT_S", 0.1)
    pids: list[int] = []

    def interrupt(text: str) -> None:
        pids.append(int(text))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_command(["sh", "-c", "trap '' INT; echo $$; while :; do sleep 1; done"], os.environ, tmp_path, interrupt)
    with pytest.raises(ProcessLookupError):
        os.kill(pids[0], 0)


def test_an_error_of_one_removal_does_not_stop_the_others() -> None:
    removed: list[str] = []

    def remove(name: str) -> None:
        if name == "b":
            raise OSError("in use")
        removed.append(name)

    assert try_each(remove, lambda: ["a", "b", "c"]) == ["b: in use"]
    assert removed == ["a", "c"]
