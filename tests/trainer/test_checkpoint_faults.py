"""Break checkpoints during and after a write: the last good one is always there, and failures are reported."""

from __future__ import annotations

import errno
import json
import os
import random
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.trainer.checkpoint_crash import SAVED, save_as_two_ranks
from tests.trainer.checkpoint_state import (
    are_equal,
    find_writer,
    make_state,
    make_tensors,
    make_zeros,
    save_and_wait,
    save_until_killed,
)
from tests.trainer.file_modes import call_without_permissions
from tests.trainer.forks import fork_context
from tests.trainer.launch import wait_until_gone
from tests.trainer.ranks import on_ranks
from trainer import host
from trainer.checkpoint import folder
from trainer.checkpoint.checkpoints import Checkpoints
from trainer.checkpoint.group import RankGroup
from trainer.checkpoint.newest import find_newest
from trainer.config.errors import ConfigError

HERE = "tests.trainer.checkpoint_state"
READS = [("types", "index.json"), ("tensors", "index.json"), ("tensors", "shard-00001.safetensors")]
READS += [("state", "state.json"), ("own", "rank-00001.json")]


@pytest.fixture
def checkpoints(tmp_path: Path) -> Iterator[Checkpoints]:
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    yield checkpoints
    checkpoints.close()


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def flip_in_manifest(path: Path) -> None:
    path.write_text(path.read_text().replace('"metric": 0.5', '"metric": 0.4'))


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


@pytest.mark.fault(10)
@pytest.mark.parametrize(
    ("name", "damage", "message"),
    [
        ("shard-00000.safetensors", flip, "shard-00000.safetensors is corrupt: checksum of bytes 0 to"),
        ("shard-00000.safetensors", cut, "shard-00000.safetensors has"),
        ("shard-00000.safetensors", Path.unlink, "shard-00000.safetensors: No such file"),
        ("state.json", flip, "state.json is corrupt"),
        ("index.json", Path.unlink, "index.json: No such file"),
        ("manifest.json", cut, "manifest.json is incomplete"),
        ("manifest.json", flip_in_manifest, "manifest.json was changed"),
        ("manifest.json", Path.unlink, "manifest.json is missing"),
    ],
)
def test_a_damaged_checkpoint_is_skipped(
    checkpoints: Checkpoints, name: str, damage: Callable[[Path], None], message: str
) -> None:
    for step in (1, 2):
        save_and_wait(checkpoints, step, make_state(step), metric=0.5)
    damage(checkpoints.path / "step-00000002" / name)
    checkpoint = checkpoints.newest()
    assert checkpoint is not None
    assert checkpoint.step == 1
    assert len(checkpoint.skipped) == 1
    assert checkpoint.skipped[0].startswith(f"step-00000002: {message}")
    loaded = make_zeros(make_state())
    checkpoints.load(checkpoint, loaded)
    assert are_equal(loaded, make_state(1))


def test_checking_only_sizes_does_not_detect_a_flipped_byte(checkpoints: Checkpoints) -> None:
    save_and_wait(checkpoints, 1, make_state())
    flip(checkpoints.path / "step-00000001" / "shard-00000.safetensors")
    quick = Checkpoints(checkpoints.path, verify="size").newest()
    assert quick is not None
    with pytest.raises(ConfigError, match=r"no checkpoint in .* is intact: step-00000001: shard-00000"):
        checkpoints.newest()


def test_ranks_share_the_hashing_and_agree(tmp_path: Path) -> None:
    for step in (1, 2):
        on_ranks(f"{HERE}:save_as", path=tmp_path, layout="fsdp", step=step)
    flip(tmp_path / "step-00000002" / "shard-00003.safetensors")
    results = on_ranks(f"{HERE}:load_as", path=tmp_path, layout="plain")
    assert [rank["step"] for rank in results] == [1] * 4
    assert all(rank["skipped"][0].startswith("step-00000002: shard-00003.safetensors is corrupt") for rank in results)


@pytest.mark.parametrize(("reads", "file"), READS)
@pytest.mark.parametrize(
    ("damage", "cause"),
    [
        (Path.unlink, "FileNotFoundError: .* No such file or directory: '{file}'"),
        (cut, "(ValueError: {file} is not valid JSON|TruncatedFile: {file}): "),
    ],
)
def test_a_file_that_one_rank_cannot_read_fails_on_all_of_them(
    tmp_path: Path, damage: Callable[[Path], None], cause: str, reads: str, file: str
) -> None:
    """If that rank failed alone, the others would wait for it. They name it, its file and the cause."""
    path, damaged = tmp_path / "checkpoints", tmp_path / "damaged"
    on_ranks(f"{HERE}:save_as", ranks=2, path=path, layout="plain", step=1)
    shutil.copytree(path / "step-00000001", damaged)
    damage(damaged / file)
    pattern = cause.format(file=re.escape(str(damaged / file)))
    errors = on_ranks(f"{HERE}:read_damaged", ranks=2, path=path, damaged=damaged, reads=reads)
    assert re.match(pattern, errors[1]), errors
    assert re.match(f"PeerError: rank 1 on {re.escape(socket.gethostname())} failed: {pattern}", errors[0]), errors


@pytest.mark.parametrize(("how", "message"), [("killed", "killed by SIGKILL"), ("full", "File too large")])
def test_a_rank_that_cannot_write_costs_one_checkpoint(tmp_path: Path, how: str, message: str) -> None:
    histories = on_ranks(f"{HERE}:save_with_bad_rank", path=tmp_path, how=how)
    first, second, third = histories[0]
    assert first[0].startswith("published: step 1")
    assert second[0].startswith("failed: step 2 was NOT saved: rank 2:")
    assert message in second[0]
    assert "the last good checkpoint is step-00000001" in second[0]
    assert third[0].startswith("published: step 3")
    assert message in histories[2][1][0]
    restarts = [text for text in histories[2][2] if text.startswith("restarted")]
    assert len(restarts) == (how == "killed")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000001", "step-00000003"]


def test_a_full_disk_costs_one_checkpoint(checkpoints: Checkpoints) -> None:
    """A limit on the size of the writer's files interrupts a write."""
    tensors = make_tensors(4 << 20, seed=1)
    save_and_wait(checkpoints, 1, tensors)
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.prlimit(find_writer(os.getpid()), resource.RLIMIT_FSIZE, (1 << 20, limit[1]))
    (event,) = save_and_wait(checkpoints, 2, tensors)
    assert event.kind == "failed"
    assert "File too large" in event.message
    assert [path.name for path in checkpoints.path.iterdir()] == ["step-00000001"]
    resource.prlimit(find_writer(os.getpid()), resource.RLIMIT_FSIZE, limit)
    (event,) = save_and_wait(checkpoints, 3, tensors)
    assert event.kind == "published"


@pytest.mark.fault(7)
@pytest.mark.parametrize("free", [0, 200_000])
def test_no_space_left_costs_one_checkpoint(small_disk: Path, free: int) -> None:
    """Without any space the first file fails, with a little space a write of tensors."""
    checkpoints = Checkpoints(small_disk / "checkpoints")
    tensors = make_tensors(512 << 10, seed=1)
    save_and_wait(checkpoints, 1, tensors)
    ballast = small_disk / "ballast"
    fill_up(ballast)
    os.truncate(ballast, ballast.stat().st_size - free)
    (event,) = save_and_wait(checkpoints, 2, tensors)
    assert event.kind == "failed"
    assert event.message.startswith("step 2 was NOT saved: No space left on device")
    assert "the last good checkpoint is step-00000001" in event.message
    assert [path.name for path in checkpoints.path.iterdir()] == ["step-00000001"]
    checkpoint = checkpoints.newest()
    assert checkpoint is not None
    loaded = make_zeros(tensors)
    checkpoints.load(checkpoint, loaded)
    assert are_equal(loaded, tensors)
    ballast.unlink()
    (event,) = save_and_wait(checkpoints, 3, tensors)
    assert event.kind == "published"
    checkpoints.close()


def fill_up(path: Path) -> None:
    with path.open("wb", buffering=0) as file:
        try:
            while file.write(bytes(4096)):
                pass
        except OSError as error:
            assert error.errno == errno.ENOSPC  # noqa: PT017  # only the last write fails


def test_a_killed_writer_is_replaced(checkpoints: Checkpoints) -> None:
    tensors = make_tensors(64 << 20, seed=1)
    save_and_wait(checkpoints, 1, tensors)
    writer = find_writer(os.getpid())
    os.kill(writer, signal.SIGSTOP)
    checkpoints.save(2, tensors, {})
    checkpoints.before_update()
    os.kill(writer, signal.SIGKILL)
    assert checkpoints.wait(240)
    (event,) = checkpoints.poll()
    assert event.kind == "failed"
    assert f"the writer process {writer} was killed by SIGKILL" in event.message
    events = save_and_wait(checkpoints, 3, tensors)
    assert [event.kind for event in events] == ["restarted", "published"]
    assert not list(checkpoints.path.glob("*.partial"))


def test_a_save_does_not_wait_forever_for_an_earlier_one(tmp_path: Path) -> None:
    """The writer of one rank hangs: all ranks give up the next save together, and the one after it succeeds."""
    histories = on_ranks(f"{HERE}:save_behind_a_hanging_writer", path=tmp_path, ranks=2)
    for blocked, late, good in histories:
        assert len(blocked) == 1
        assert blocked[0].startswith("failed: step 2 was NOT saved: an earlier save, ")
        assert ", has not ended within 0.2 s; training continues" in blocked[0]
        assert [text.split(":")[0] for text in late] == ["published" if late is histories[0][1] else "written"]
        assert [text.split(":")[0] for text in good] == ["published" if good is histories[0][2] else "written"]
    assert "that of step 1" in histories[1][0][0]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000001", "step-00000003"]


def test_a_save_without_memory_to_stage_it_fails_and_no_process_dies(
    checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without this check, the kernel would hand out the pages and later kill a process to get them back."""
    tensors = make_tensors(8 << 20, seed=1)
    with monkeypatch.context() as scarce:
        scarce.setattr(host, "available_memory", lambda: 4_000_000)
        with pytest.raises(
            ConfigError, match=r"staging a save needs 8\.4 MB of memory on .* which has 4\.0 MB available"
        ):
            checkpoints.check_folder(tensors)
        checkpoints.save(1, tensors, {})
        assert checkpoints.wait(240)
        (event,) = checkpoints.poll()
    assert event.kind == "failed"
    assert "was NOT saved: cannot be started: 8.4 MB of memory needed, 4.0 MB available" in event.message
    checkpoints.check_folder(tensors)
    assert [event.kind for event in save_and_wait(checkpoints, 2, tensors)] == ["published"]


def test_signals_to_the_whole_job_do_not_stop_a_write(checkpoints: Checkpoints) -> None:
    tensors = make_tensors(32 << 20, seed=1)
    save_and_wait(checkpoints, 1, tensors)
    writer = find_writer(os.getpid())
    checkpoints.save(2, tensors, {})
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT, signal.SIGHUP):
        os.kill(writer, number)
    assert checkpoints.wait(240)
    assert [event.kind for event in checkpoints.poll()] == ["published"]


@pytest.mark.nightly_cases("1")
@pytest.mark.fault(10)
@pytest.mark.parametrize("again", [1, 2])
def test_a_kill_before_any_file_operation_leaves_a_complete_checkpoint(tmp_path: Path, again: int) -> None:
    """Kill at every instant of a save: of step 1, which exists already, and of step 2, after which 1 is removed."""
    save_as_two_ranks(str(tmp_path / "first"), 1, "first")
    ends: list[int] = []
    while SAVED not in ends:
        path = tmp_path / f"killed-{len(ends)}"
        shutil.copytree(tmp_path / "first", path)
        ends.append(crash(path, again, "second", len(ends)))
        checkpoint = find_newest(path, RankGroup(0, 1), "full")
        assert checkpoint is not None
        assert checkpoint.skipped == ()
        assert (checkpoint.path / "shard-00001.safetensors").read_text() in ("first", "second")
        save_as_two_ranks(str(path), again, "third")
        assert [entry.name for entry in path.iterdir()] == [f"step-0000000{again}"]
        assert (path / f"step-0000000{again}" / "shard-00001.safetensors").read_text() == "third"
    assert len(ends) > 20


def crash(path: Path, step: int, content: str, operations: int) -> int:
    arguments = ["-S", "-m", "tests.trainer.checkpoint_crash", str(path), str(step), content, str(operations)]
    return subprocess.run([sys.executable, *arguments], cwd=Path(__file__).parents[2]).returncode


@pytest.mark.nightly_cases("True")
@pytest.mark.fault(10)
@pytest.mark.parametrize("also_writer", [True, False])
def test_a_kill_at_any_instant_leaves_the_last_published_checkpoint(tmp_path: Path, also_writer: bool) -> None:
    chance = random.Random(also_writer)
    context = fork_context()
    seen = 0
    for _ in range(4):
        process = context.Process(target=save_until_killed, args=(tmp_path, 4 << 20, seen + 1), daemon=True)
        process.start()
        writer = find_writer(process.pid or 0)
        until = time.monotonic() + chance.uniform(0.05, 0.6)
        while time.monotonic() < until or not folder.list_published(tmp_path):
            time.sleep(0.001)
        if also_writer:
            os.kill(writer, signal.SIGKILL)
        process.kill()
        process.join()
        wait_until_gone([writer])
        checkpoint = Checkpoints(tmp_path).newest()
        assert checkpoint is not None
        assert checkpoint.skipped == ()
        assert checkpoint.step >= seen
        seen = checkpoint.step
        loaded = make_zeros(make_tensors(4 << 20, seen))
        Checkpoints(tmp_path).load(checkpoint, loaded)
        assert are_equal(loaded, make_tensors(4 << 20, seen))


def test_saving_a_step_again_replaces_it(checkpoints: Checkpoints) -> None:
    for seed in (1, 2, 3):
        save_and_wait(checkpoints, 5, make_state(seed))
    assert [path.name for path in checkpoints.path.iterdir()] == ["step-00000005"]
    checkpoint = checkpoints.newest()
    assert checkpoint is not None
    loaded = make_zeros(make_state())
    checkpoints.load(checkpoint, loaded)
    assert are_equal(loaded, make_state(3))


def test_a_kill_during_a_replacement_leaves_one_checkpoint(checkpoints: Checkpoints) -> None:
    """The name that a kill can leave behind is recognised, and the next save replaces it."""
    save_and_wait(checkpoints, 5, make_state(1))
    final = checkpoints.path / "step-00000005"
    final.rename(checkpoints.path / "step-00000005.r1")
    checkpoint = checkpoints.newest()
    assert checkpoint is not None
    assert checkpoint.step == 5
    save_and_wait(checkpoints, 5, make_state(2))
    assert [path.name for path in checkpoints.path.iterdir()] == ["step-00000005"]
    assert json.loads((final / "manifest.json").read_text())["step"] == 5


def test_missing_permissions_are_reported_at_the_start_and_survived_later(tmp_path: Path) -> None:
    rejection, failed, published = call_without_permissions(save_without_permissions, tmp_path)
    assert "run.folder" in rejection
    assert "cannot be written" in rejection
    assert "Permission denied" in rejection
    assert failed.startswith("step 2 was NOT saved: Permission denied")
    assert "the last good checkpoint is step-00000001" in failed
    assert published.startswith("step 3 published")


def save_without_permissions(tmp_path: Path) -> tuple[str, str, str]:
    path = tmp_path / "checkpoints"
    path.mkdir()
    checkpoints = Checkpoints(path)
    save_and_wait(checkpoints, 1, make_state())
    path.chmod(0o555)
    try:
        checkpoints.check_folder(make_state())
        rejection = ""
    except ConfigError as error:
        rejection = str(error)
    (failed,) = save_and_wait(checkpoints, 2, make_state())
    path.chmod(0o755)
    (published,) = save_and_wait(checkpoints, 3, make_state())
    checkpoints.close()
    return rejection, failed.message, published.message
