"""The lock of a run folder, with real processes that race, stop, die and come back."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from tests.trainer.launch import REPO
from tests.trainer.test_checkpoint_faults import fill_up
from trainer.checkpoint import run_lock
from trainer.checkpoint.lock_owner import JOB_SCRIPT, Owner, explain_takeover, name_self
from trainer.checkpoint.run_lock import LOCK_FOLDER, FolderInUse, RunLock

BEAT_S, STALE_S = 0.05, 1.0
# Of owners that live: on a busy machine, one may not run for a second.
LONG_STALE_S = 5.0
RACES_AT_ONCE = 10
OTHER_HOST = Owner(id="there", host="gpu-9", pid=1, process="boot pid:[1] 99", since="2026-11-17 10:00:00 UTC")


class Holder:
    """A process of tests.trainer.lock_holder."""

    def __init__(self, stale_s: float = STALE_S, **variables: str) -> None:
        command = [sys.executable, "-S", "-m", "tests.trainer.lock_holder", str(BEAT_S), str(stale_s)]
        environment = {**os.environ, "PYTHONPATH": str(REPO), **variables}
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, cwd=REPO, env=environment, stdin=pipe, stdout=pipe, text=True)

    def send(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def answer(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def do(self, line: str) -> str:
        self.send(line)
        return self.answer()

    def stop(self) -> None:
        self.process.send_signal(signal.SIGSTOP)
        self.wait_until_stopped()

    def wait_until_stopped(self) -> None:
        deadline = time.monotonic() + 60
        while Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def resume(self) -> None:
        self.process.send_signal(signal.SIGCONT)


@pytest.fixture
def start() -> Iterator[Callable[..., Holder]]:
    holders: list[Holder] = []

    def start_holder(stale_s: float = STALE_S, **variables: str) -> Holder:
        holders.append(Holder(stale_s, **variables))
        return holders[-1]

    yield start_holder
    for holder in holders:
        holder.process.kill()
        holder.process.communicate()


@pytest.fixture
def short_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_lock, "BEAT_S", BEAT_S)
    monkeypatch.setattr(run_lock, "STALE_S", STALE_S)


def write_owner(folder: Path, owner: Owner, epoch: int) -> None:
    (folder / LOCK_FOLDER).mkdir(parents=True)
    (folder / LOCK_FOLDER / f"{epoch:08d}").write_text(json.dumps(asdict(owner)))


def list_files(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.nightly_cases("dead owner-10")
@pytest.mark.parametrize("races", [10, pytest.param(50, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("is_fresh", [True, False], ids=["fresh", "dead owner"])
def test_one_of_two_processes_wins_each_race(
    start: Callable[..., Holder], tmp_path: Path, is_fresh: bool, races: int
) -> None:
    """In a fresh folder, and for that of an owner on another host that has died: both see it at the same moment."""
    pairs = [(start(LONG_STALE_S), start(LONG_STALE_S)) for _ in range(RACES_AT_ONCE)]
    for number in range(races):
        racers = pairs[number % RACES_AT_ONCE]
        if racers is pairs[0]:
            for later, pair in enumerate(pairs, number):
                send_to_race(pair, tmp_path / str(later), is_fresh)
        answers = [racer.answer() for racer in racers]
        won = [answer.startswith("epoch") for answer in answers]
        assert sorted(won) == [False, True], answers
        winner, loser = racers[won.index(True)], answers[won.index(False)]
        assert answers[won.index(True)] == ("epoch 1" if is_fresh else "epoch 8 after watching")
        assert f"in use by process {winner.process.pid} on " in loser
        assert "it has touched the lock just now" in loser
        assert winner.do(f"save {number}") == "published"
        assert winner.do("release") == "released"


def send_to_race(racers: tuple[Holder, Holder], folder: Path, is_fresh: bool) -> None:
    if not is_fresh:
        write_owner(folder, OTHER_HOST, epoch=7)
    for racer in racers:
        racer.send(f"take {folder}")


def test_epochs_only_grow(tmp_path: Path) -> None:
    epochs = []
    for _ in range(3):
        lock = RunLock.take(tmp_path)
        epochs.append(lock.fence.epoch)
        lock.release()
    assert epochs == sorted(set(epochs))
    assert len(list((tmp_path / LOCK_FOLDER).iterdir())) == 1


def test_an_owner_that_was_stopped_changes_nothing_when_it_wakes_up(
    start: Callable[..., Holder], tmp_path: Path
) -> None:
    old, new = start(), start()
    assert old.do(f"take {tmp_path}") == "epoch 1"
    assert old.do("save 1") == "published"
    old.stop()
    began = time.monotonic()
    assert new.do(f"take {tmp_path}") == "epoch 2 after watching"
    assert time.monotonic() - began >= STALE_S
    assert new.do("save 2") == "published"
    unfinished = tmp_path / "checkpoints" / "step-00000003.e2-00000000-3.partial"
    unfinished.mkdir()
    (unfinished / "shard-00000.safetensors").write_text("of the new owner")
    before = list_files(tmp_path)
    old.resume()
    for command in ("save 9", "remove 1"):
        answer = old.do(command)
        assert answer.startswith(f"failed another process has taken over {tmp_path} (epoch 1 is over)"), answer
    assert old.do("lost") == "lost"
    assert old.do("release") == "released"
    assert list_files(tmp_path) == before
    assert new.do("save 4") == "published"


def test_an_owner_that_was_stopped_right_before_it_publishes_cannot(
    start: Callable[..., Holder], tmp_path: Path
) -> None:
    """It has asked the lock already, so only the new owner's sweep can stop it."""
    old, new = start(), start()
    assert old.do(f"take {tmp_path}") == "epoch 1"
    assert old.do("save 1") == "published"
    old.send("stop_and_save 5")
    old.wait_until_stopped()
    assert new.do(f"take {tmp_path}") == "epoch 2 after watching"
    before = list_files(tmp_path)
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-00000001"]
    old.resume()
    assert old.answer().startswith("failed No such file or directory")
    assert list_files(tmp_path) == before


def test_the_folder_of_a_killed_process_is_taken_at_once(start: Callable[..., Holder], tmp_path: Path) -> None:
    old, new = start(), start()
    assert old.do(f"take {tmp_path}") == "epoch 1"
    old.process.kill()
    old.process.wait()
    assert new.do(f"take {tmp_path}") == "epoch 2"


def test_the_next_attempt_of_a_job_takes_over_at_once_and_the_earlier_one_is_refused(
    start: Callable[..., Holder], tmp_path: Path
) -> None:
    first = start(SLURM_JOB_ID="777")
    second = start(SLURM_JOB_ID="777", SLURM_RESTART_COUNT="1")
    other = start(LONG_STALE_S, SLURM_JOB_ID="778")
    assert first.do(f"take {tmp_path}") == "epoch 1"
    assert other.do(f"take {tmp_path}").startswith("refused in use by job 777 (attempt 1), process ")
    assert second.do(f"take {tmp_path}") == "epoch 2"
    assert first.do("lost") == "lost"
    assert first.do("save 1").startswith("failed another process has taken over")
    refused = first.do(f"take {tmp_path}")
    assert refused.endswith("it is a later attempt of this job")
    assert second.do("save 2") == "published"


@pytest.mark.parametrize(
    ("owner", "successor", "ended_jobs", "reason"),
    [
        ({"job": "7"}, {"job": "7", "restart": 1}, (), "it is an earlier attempt of the same job"),
        ({"job": "7", "restart": 2}, {"job": "7", "restart": 1}, (), ""),
        ({"job": "7"}, {"job": "8", "restart": 1}, (), ""),
        ({"job": "7"}, {"job": "7"}, (), ""),
        ({}, {"restart": 1}, (), ""),
        ({"job": "7", "launcher": "x"}, {"job": "7", "launcher": "x"}, (), "the launcher has replaced its ranks"),
        ({"launcher": "x"}, {"launcher": "x"}, (), "the launcher has replaced its ranks"),
        ({"job": "7", "launcher": "x"}, {"job": "7", "launcher": "y"}, (), ""),
        ({"job": "7", "launcher": JOB_SCRIPT}, {"job": "7"}, (), "it holds the folder for the ranks of this job"),
        ({"job": "7", "launcher": JOB_SCRIPT}, {"job": "8"}, (), ""),
        ({"launcher": JOB_SCRIPT}, {"launcher": JOB_SCRIPT}, (), ""),
        ({"job": "7"}, {"job": "8"}, ("7",), "its job has ended"),
        ({"job": "7"}, {"job": "8"}, ("6",), ""),
    ],
)
def test_who_may_take_over_at_once(
    owner: dict[str, str], successor: dict[str, str], ended_jobs: tuple[str, ...], reason: str
) -> None:
    there, here = replace(OTHER_HOST, **owner), replace(OTHER_HOST, **successor)
    assert explain_takeover(there, here, ended_jobs, lambda _: None) == reason
    assert explain_takeover(there, here, ended_jobs, lambda _: True) == reason
    assert explain_takeover(there, here, ended_jobs, lambda _: False) == (reason or "its process has ended")


@pytest.mark.usefixtures("short_times")
def test_an_owner_on_another_host_is_watched(tmp_path: Path) -> None:
    write_owner(tmp_path, OTHER_HOST, epoch=3)
    notes: list[str] = []
    began = time.monotonic()
    lock = RunLock.take(tmp_path, say=notes.append)
    assert time.monotonic() - began >= STALE_S
    assert notes == [f"{tmp_path} was last used by process 1 on gpu-9: watching for up to 1 s whether it still runs"]
    assert lock.fence.epoch == 4
    lock.release()


@pytest.mark.usefixtures("short_times")
def test_a_job_that_has_ended_is_not_watched(tmp_path: Path) -> None:
    write_owner(tmp_path, replace(OTHER_HOST, job="7"), epoch=3)
    notes: list[str] = []
    RunLock.take(tmp_path, ended_jobs=("7",), say=notes.append).release()
    assert notes == []


def test_the_number_of_a_dead_process_may_be_used_again(tmp_path: Path) -> None:
    """The owner's process had the number of this one, but started earlier."""
    earlier = replace(name_self(), process=name_self().process.rpartition(" ")[0] + " 1")
    write_owner(tmp_path, earlier, epoch=1)
    lock = RunLock.take(tmp_path)
    with pytest.raises(FolderInUse, match="in use by process"):
        RunLock.take(tmp_path)
    lock.release()


def test_a_folder_that_cannot_be_written_says_so(small_disk: Path) -> None:
    with pytest.raises(OSError, match="Read-only file system") as read_only:
        RunLock.take(Path("/sys/kernel"))
    assert read_only.value.errno == errno.EROFS
    (small_disk / LOCK_FOLDER).mkdir()
    fill_up(small_disk / "ballast")
    with pytest.raises(OSError, match="No space left on device"):
        RunLock.take(small_disk)
    (small_disk / "ballast").unlink()
    RunLock.take(small_disk).release()


@pytest.mark.parametrize("code", [errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS])
def test_a_filesystem_without_hard_links_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    def refuse(*_paths: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "link", refuse)
    with pytest.raises(OSError, match="its filesystem cannot create hard links, which the lock needs") as refused:
        RunLock.take(tmp_path)
    assert refused.value.strerror is not None
    assert os.strerror(code) in refused.value.strerror
    assert list((tmp_path / LOCK_FOLDER).iterdir()) == []
