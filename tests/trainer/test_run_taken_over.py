"""Two runs in one folder: the second is refused, or takes over, and then the first one ends and changes nothing."""

from __future__ import annotations

import json
import os
import signal
import socket
from pathlib import Path

import pytest

from tests.trainer.launch import (
    SMALL_LLAMA,
    Launched,
    alone,
    assert_finished,
    checkpoint_steps,
    events,
    forked,
    losses,
    outcome,
    wait_for_step,
)
from tests.trainer.test_checkpoint_faults import fill_up
from trainer.__main__ import main
from trainer.checkpoint.run_lock import LOCK_FOLDER
from trainer.life.outcome import Code

QUICK = "tests.trainer.quick_rank"


def settings(folder: Path, steps: int, *more: str) -> list[str]:
    return [*SMALL_LLAMA, f"run.folder={folder}", f"steps={steps}", "checkpoint.every=5", *more]


def wait_for_checkpoint(run: Launched, folder: Path) -> None:
    run.until(lambda: checkpoint_steps(folder) != [], "a checkpoint")


@pytest.mark.fault(11)
def test_a_second_run_in_the_same_folder_is_refused_and_the_first_one_finishes(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with forked(2, settings(folder, 1_000_000, "parallel.strategy=ddp"), tmp_path, program=QUICK) as first:
        wait_for_checkpoint(first, folder)
        (owner,) = (folder / LOCK_FOLDER).iterdir()
        pid = json.loads(owner.read_text())["pid"]
        started = len(events(folder, "started"))
        # The first one, which trains on a busy machine, need not touch its lock within two seconds.
        arguments = settings(folder, 7, "parallel.strategy=ddp")
        with forked(2, arguments, tmp_path, program=QUICK, STALE_S="60") as second:
            assert second.wait() == Code.BAD_INPUT, second.output
        assert f"run.folder: {folder} is in use by process {pid} on {socket.gethostname()} since 20" in second.output
        assert f"wait for it, stop it (`kill {pid} on {socket.gethostname()}`), or use another run" in second.output
        assert len(events(folder, "started")) == started
        assert not (folder / "outcome.json").exists()
        assert not (folder / "failures").exists()
        wait_for_step(first, folder, max(losses(folder)) + 5)
        (folder / "stop").write_text("enough")
        assert first.wait() == Code.STOPPED, first.output
    assert outcome(folder)["outcome"] == "stopped"
    assert sorted(losses(folder)) == list(range(1, outcome(folder)["step"] + 1))


@pytest.mark.nightly_cases("2")
@pytest.mark.parametrize("ranks", [pytest.param(1, marks=pytest.mark.nightly), 2])
def test_a_run_that_was_stopped_and_taken_over_ends_and_changes_nothing(tmp_path: Path, ranks: int) -> None:
    folder = tmp_path / "run"
    strategy = "parallel.strategy=ddp" if ranks > 1 else "parallel.strategy=auto"
    # While it is stopped, the limit of a hang passes: it must be longer than the second run takes.
    arguments = settings(folder, 1_000_000, strategy, "watchdog.hang_s=600")
    with forked(ranks, arguments, tmp_path, program=QUICK) as first:
        wait_for_checkpoint(first, folder)
        everything = first.pids()
        for pid in everything:
            os.kill(pid, signal.SIGSTOP)
        last = checkpoint_steps(folder)[-1]
        with alone(settings(folder, last + 20), tmp_path, program=QUICK) as second:
            assert_finished(second)
        assert "watching for up to 2 s whether it still runs" in second.output
        before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and is_lasting(path)}
        for pid in reversed(everything):
            os.kill(pid, signal.SIGCONT)
        assert first.wait() == Code.BROKEN, first.output
    assert "trainer: FOLDER LOST at step " in first.output
    assert f"another process has taken over the run folder ({folder}); nothing more is written" in first.output
    after = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and is_lasting(path)}
    assert after == before
    assert outcome(folder)["outcome"] == "finished"
    assert checkpoint_steps(folder)[-1] == last + 20


def is_lasting(path: Path) -> bool:
    """Lines of metrics may be written until the old owner looks; leftovers of its save may stay until the next one."""
    return "metrics" not in path.parts and ".partial" not in str(path) and path.name not in HARMLESS


HARMLESS = ("events.jsonl", "progress.json")


def test_a_killed_run_is_continued_at_once(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with alone(settings(folder, 1_000_000), tmp_path) as first:
        wait_for_checkpoint(first, folder)
        first.kill()
    last = checkpoint_steps(folder)[-1]
    with alone(settings(folder, last + 5), tmp_path) as second:
        assert_finished(second)
    assert "watching" not in second.output
    assert f"resumed from step-{last:08d}" in second.output


def test_a_rejected_run_gives_the_folder_back(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "run"
    assert main(settings(folder, 5, "checkpoint.resume=must")) == Code.BAD_INPUT
    assert not folder.exists()
    assert main(settings(folder, 5)) == Code.FINISHED
    history = (folder / "events.jsonl").read_bytes()
    for rejected in (["checkpoint.resume=never"], ["data.kind=tokens", f"data.path={tmp_path}/nowhere"]):
        assert main(settings(folder, 5, *rejected)) == Code.BAD_INPUT
        assert (folder / "events.jsonl").read_bytes() == history
    assert main(settings(folder, 10)) == Code.FINISHED


def test_a_full_disk_is_named(small_disk: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (small_disk / "run").mkdir()
    fill_up(small_disk / "ballast")
    assert main(settings(small_disk / "run", 5)) == Code.BAD_INPUT
    assert f"run.folder: {small_disk / 'run'} cannot be written: No space left on device" in capfd.readouterr().err
