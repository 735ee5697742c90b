"""I/O errors while checkpoints are read are retried, then fail the run; they never count as damage."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.checkpoint_state import are_equal, make_state, make_zeros, save_and_wait
from tests.trainer.file_modes import call_without_permissions
from tests.trainer.first_cause import assert_first_cause
from tests.trainer.launch import SMALL_LLAMA, alone, checkpoint, checkpoint_steps
from tests.trainer.test_checkpoint_faults import flip
from trainer import safetensors_file
from trainer.__main__ import main
from trainer.checkpoint import read_retry
from trainer.checkpoint.checkpoints import Checkpoints
from trainer.checkpoint.manifest import check_content, read_manifest
from trainer.checkpoint.read_retry import UnreadableCheckpoint
from trainer.life.cause import Cause
from trainer.life.outcome import Code

# Nothing is mapped at address 0, so the kernel answers a read of this file with EIO.
BROKEN_FILE = "/proc/self/mem"
SHORT_WAITS_S = (0.05, 0.1, 0.2)


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_retry, "RETRY_WAITS_S", SHORT_WAITS_S)


@pytest.fixture
def checkpoints(tmp_path: Path) -> Iterator[Checkpoints]:
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    for step in (10, 30):
        save_and_wait(checkpoints, step, make_state(step))
    yield checkpoints
    checkpoints.close()


@contextmanager
def unreadable(path: Path) -> Iterator[None]:
    """Replace a file by one that cannot be read, and bring it back."""
    intact = path.with_name("intact")
    path.rename(intact)
    path.symlink_to(BROKEN_FILE)
    with pytest.raises(OSError, match="Input/output error") as error:
        path.read_bytes()
    assert error.value.errno == errno.EIO
    try:
        yield
    finally:
        intact.replace(path)


def list_names(checkpoints: Checkpoints) -> list[str]:
    return sorted(path.name for path in checkpoints.path.iterdir())


def test_an_io_error_that_stays_is_no_damage(checkpoints: Checkpoints) -> None:
    file = checkpoints.path / "step-00000030" / "manifest.json"
    with unreadable(file), pytest.raises(UnreadableCheckpoint) as error:
        checkpoints.newest()
    assert str(error.value).startswith(f"{file} cannot be read: Input/output error, 4 times within 0.35 s; ")
    assert list_names(checkpoints) == ["step-00000010", "step-00000030"]
    newest = checkpoints.newest()
    assert newest is not None
    assert (newest.step, newest.skipped) == (30, ())


def test_an_io_error_that_passes_is_not_noticed(checkpoints: Checkpoints) -> None:
    with unreadable(checkpoints.path / "step-00000030" / "manifest.json"):
        healed = threading.Timer(0.1, lambda: file_back(checkpoints.path / "step-00000030" / "manifest.json"))
        healed.start()
        newest = checkpoints.newest()
        healed.join()
        # The block's end moves the file back again.
        os.link(checkpoints.path / "step-00000030" / "manifest.json", checkpoints.path / "step-00000030" / "intact")
    assert newest is not None
    assert (newest.step, newest.skipped) == (30, ())


def file_back(path: Path) -> None:
    path.with_name("intact").replace(path)


def test_a_piece_that_cannot_be_read_is_no_damage(checkpoints: Checkpoints) -> None:
    path = checkpoints.path / "step-00000030"
    manifest = read_manifest(path)
    with unreadable(path / "state.json"), pytest.raises(UnreadableCheckpoint, match=r"state\.json cannot be read"):
        check_content(path, manifest, 0, 1)
    assert check_content(path, manifest, 0, 1) == []


def test_a_tensor_that_cannot_be_read_is_read_again(checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is opened, and its header read, before the filesystem fails."""
    state, failures = make_zeros(make_state()), iter((errno.EIO, errno.ESTALE))
    read = os.preadv

    def fail_twice(*arguments: Any) -> int:
        for number in failures:
            raise OSError(number, os.strerror(number))
        return read(*arguments)

    newest = checkpoints.newest()
    assert newest is not None
    monkeypatch.setattr(safetensors_file.os, "preadv", fail_twice)
    checkpoints.load(newest, state)
    assert are_equal(state, make_state(30))


def test_missing_permissions_are_no_damage(tmp_path: Path) -> None:
    messages = call_without_permissions(read_without_permissions, tmp_path)
    assert messages == [f"{tmp_path}/step-00000002/{name} cannot be read: Permission denied" for name in FORBIDDEN]


FORBIDDEN = ("manifest.json", "shard-00000.safetensors")


def read_without_permissions(path: Path) -> list[str]:
    read_retry.RETRY_WAITS_S = SHORT_WAITS_S  # the fixture has not changed this process
    checkpoints = Checkpoints(path)
    messages = []
    for step in (1, 2):
        save_and_wait(checkpoints, step, make_state(step))
    for name in FORBIDDEN:
        (path / "step-00000002" / name).chmod(0)
        try:
            messages.append(str(checkpoints.newest()))
        except UnreadableCheckpoint as error:
            messages.append(str(error).partition(", 4 times")[0])
        (path / "step-00000002" / name).chmod(0o644)
    checkpoints.close()
    return messages


def test_a_later_checkpoint_that_was_not_read_is_not_removed(checkpoints: Checkpoints, tmp_path: Path) -> None:
    """A listing without it, as from a stale cache, leads to a resume from step 10; nobody has read step 30."""
    later = checkpoints.path / "step-00000030"
    later.rename(tmp_path / "hidden")
    resumed = Checkpoints(checkpoints.path, keep=1)
    newest = resumed.newest()
    assert newest is not None
    assert newest.step == 10
    (tmp_path / "hidden").rename(later)
    save_and_wait(resumed, 20, make_state(20))
    resumed.close()
    assert list_names(checkpoints) == ["step-00000020", "step-00000030"]


def test_a_later_checkpoint_that_was_found_damaged_is_removed(checkpoints: Checkpoints) -> None:
    flip(checkpoints.path / "step-00000030" / "shard-00000.safetensors")
    resumed = Checkpoints(checkpoints.path, keep=1)
    newest = resumed.newest()
    assert newest is not None
    assert (newest.step, newest.skipped_steps) == (10, (30,))
    save_and_wait(resumed, 20, make_state(20))
    resumed.close()
    assert list_names(checkpoints) == ["step-00000020"]


def test_nothing_is_removed_while_a_metric_cannot_be_read(tmp_path: Path) -> None:
    """The best checkpoint must not go because its metric could not be read for a moment."""
    checkpoints = Checkpoints(tmp_path, keep=1, best="loss")
    save_and_wait(checkpoints, 1, make_state(), metric=1.0)
    with unreadable(tmp_path / "step-00000001" / "manifest.json"):
        for step in (2, 3):
            assert save_and_wait(checkpoints, step, make_state(), metric=2.0)[0].kind == "published"
        assert list_names(checkpoints) == ["step-00000001", "step-00000002", "step-00000003"]
    save_and_wait(checkpoints, 4, make_state(), metric=2.0)
    checkpoints.close()
    assert list_names(checkpoints) == ["step-00000001", "step-00000004"]


def test_a_run_that_cannot_read_its_newest_checkpoint_fails_and_loses_nothing(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    arguments = [*SMALL_LLAMA, f"run.folder={folder}", "checkpoint.every=2", "checkpoint.asynchronous=false"]
    assert main([*arguments, "steps=4"]) == Code.FINISHED
    # A new process: its outcome must not be taken for that of the run above.
    with (
        unreadable(checkpoint(folder, 4) / "manifest.json"),
        alone([*arguments, "steps=6"], tmp_path, program="tests.trainer.quick_rank") as run,
    ):
        assert run.wait() == Code.BROKEN, run.output
    ended = assert_first_cause(folder, Cause.STORAGE, rank=0)
    assert "manifest.json cannot be read: Input/output error" in ended["failure"]["error"]
    assert checkpoint_steps(folder) == [2, 4]
    capfd.readouterr()
    assert main([*arguments, "steps=6"]) == Code.FINISHED
    assert "resumed from step-00000004" in capfd.readouterr().out
