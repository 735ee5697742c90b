"""Breaking checkpoints while they are written and after: the last good one is always there, and it is said."""

from __future__ import annotations

import ctypes
import errno
import json
import multiprocessing
import multiprocessing.connection
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.trainer.checkpoint_crash import SAVED, save_both
from tests.trainer.checkpoint_state import (
    blank,
    bytes_of,
    full,
    same,
    save_until_killed,
    saved,
    writer_of,
)
from tests.trainer.ranks import on_ranks
from trainer import host
from trainer.checkpoint import folder
from trainer.checkpoint.checkpoints import Checkpoints
from trainer.checkpoint.group import RankGroup
from trainer.checkpoint.newest import find_newest
from trainer.config.errors import ConfigError

HERE = "tests.trainer.checkpoint_state"


@pytest.fixture
def checkpoints(tmp_path: Path) -> Iterator[Checkpoints]:
    made = Checkpoints(tmp_path / "checkpoints")
    yield made
    made.close()


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def flip_in_manifest(path: Path) -> None:
    path.write_text(path.read_text().replace('"metric": 0.5', '"metric": 0.4'))


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


@pytest.mark.parametrize(
    ("name", "harm", "said"),
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
def test_a_damaged_checkpoint_is_passed_over(
    checkpoints: Checkpoints, name: str, harm: Callable[[Path], None], said: str
) -> None:
    for step in (1, 2):
        saved(checkpoints, step, full(step), metric=0.5)
    harm(checkpoints.path / "step-00000002" / name)
    found = checkpoints.newest()
    assert found is not None
    assert found.step == 1
    assert len(found.skipped) == 1
    assert found.skipped[0].startswith(f"step-00000002: {said}")
    loaded = blank(full())
    checkpoints.load(found, loaded)
    assert same(loaded, full(1))


def test_sizes_alone_do_not_see_a_flipped_byte_and_cost_no_reading(checkpoints: Checkpoints) -> None:
    saved(checkpoints, 1, full())
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


@pytest.mark.parametrize(("how", "said"), [("killed", "killed by SIGKILL"), ("full", "File too large")])
def test_one_rank_that_cannot_write_costs_one_checkpoint(tmp_path: Path, how: str, said: str) -> None:
    histories = on_ranks(f"{HERE}:with_one_bad_rank", path=tmp_path, how=how)
    first, second, third = histories[0]
    assert first[0].startswith("published: step 1")
    assert second[0].startswith("failed: step 2 was NOT saved: rank 2:")
    assert said in second[0]
    assert "the last good checkpoint is step-00000001" in second[0]
    assert third[0].startswith("published: step 3")
    assert said in histories[2][1][0]
    restarts = [text for text in histories[2][2] if text.startswith("restarted")]
    assert len(restarts) == (how == "killed")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000001", "step-00000003"]


def test_a_full_disk_costs_one_checkpoint(checkpoints: Checkpoints) -> None:
    """Here a limit on the size of the writer's files cuts a write short in its middle."""
    tensors = bytes_of(4 << 20, seed=1)
    saved(checkpoints, 1, tensors)
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.prlimit(writer_of(os.getpid()), resource.RLIMIT_FSIZE, (1 << 20, limit[1]))
    (event,) = saved(checkpoints, 2, tensors)
    assert event.kind == "failed"
    assert "File too large" in event.message
    assert [path.name for path in checkpoints.path.iterdir()] == ["step-00000001"]
    resource.prlimit(writer_of(os.getpid()), resource.RLIMIT_FSIZE, limit)
    (event,) = saved(checkpoints, 3, tensors)
    assert event.kind == "published"


@pytest.mark.parametrize("free", [0, 200_000])
def test_no_space_left_costs_one_checkpoint(small_disk: Path, free: int) -> None:
    """With not a byte left the first file fails, with a little the middle of the tensors."""
    checkpoints = Checkpoints(small_disk / "checkpoints")
    tensors = bytes_of(512 << 10, seed=1)
    saved(checkpoints, 1, tensors)
    ballast = small_disk / "ballast"
    fill_up(ballast)
    os.truncate(ballast, ballast.stat().st_size - free)
    (event,) = saved(checkpoints, 2, tensors)
    assert event.kind == "failed"
    assert event.message.startswith("step 2 was NOT saved: No space left on device")
    assert "the last good checkpoint is step-00000001" in event.message
    assert [path.name for path in checkpoints.path.iterdir()] == ["step-00000001"]
    found = checkpoints.newest()
    assert found is not None
    loaded = blank(tensors)
    checkpoints.load(found, loaded)
    assert same(loaded, tensors)
    ballast.unlink()
    (event,) = saved(checkpoints, 3, tensors)
    assert event.kind == "published"
    checkpoints.close()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A filesystem of 2 MB: the one that the tests' container has, else one that root mounts."""
    given = os.environ.get("MUSTER_SMALL_DISK")
    if given:
        made = Path(tempfile.mkdtemp(dir=given))
        yield made
        shutil.rmtree(made)
        return
    made = tmp_path / "small"
    made.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(made)], check=True)
    yield made
    subprocess.run(["umount", str(made)], check=True)


def fill_up(path: Path) -> None:
    with path.open("wb", buffering=0) as file:
        try:
            while file.write(bytes(4096)):
                pass
        except OSError as error:
            assert error.errno == errno.ENOSPC  # noqa: PT017


def test_a_killed_writer_is_noticed_and_replaced(checkpoints: Checkpoints) -> None:
    tensors = bytes_of(64 << 20, seed=1)
    saved(checkpoints, 1, tensors)
    writer = writer_of(os.getpid())
    os.kill(writer, signal.SIGSTOP)
    checkpoints.save(2, tensors, {})
    checkpoints.before_update()
    os.kill(writer, signal.SIGKILL)
    assert checkpoints.wait(30)
    (event,) = checkpoints.poll()
    assert event.kind == "failed"
    assert f"the writer process {writer} was killed by SIGKILL" in event.message
    events = saved(checkpoints, 3, tensors)
    assert [event.kind for event in events] == ["restarted", "published"]
    assert not list(checkpoints.path.glob("*.partial"))


def test_no_memory_to_stage_a_save_costs_that_save_and_no_process(
    checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel would give the pages and then end somebody for them."""
    tensors = bytes_of(8 << 20, seed=1)
    with monkeypatch.context() as scarce:
        scarce.setattr(host, "available_memory", lambda: 4_000_000)
        with pytest.raises(
            ConfigError, match=r"staging a save needs 8\.4 MB of memory on .* which has 4\.0 MB available"
        ):
            checkpoints.check_folder(tensors)
        checkpoints.save(1, tensors, {})
        assert checkpoints.wait(30)
        (event,) = checkpoints.poll()
    assert event.kind == "failed"
    assert "was NOT saved: cannot be started: 8.4 MB of memory needed, 4.0 MB available" in event.message
    checkpoints.check_folder(tensors)
    assert [event.kind for event in saved(checkpoints, 2, tensors)] == ["published"]


def test_warnings_to_the_whole_job_do_not_stop_a_write(checkpoints: Checkpoints) -> None:
    tensors = bytes_of(32 << 20, seed=1)
    saved(checkpoints, 1, tensors)
    writer = writer_of(os.getpid())
    checkpoints.save(2, tensors, {})
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT, signal.SIGHUP):
        os.kill(writer, number)
    assert checkpoints.wait(30)
    assert [event.kind for event in checkpoints.poll()] == ["published"]


@pytest.mark.parametrize("again", [1, 2])
def test_killed_before_any_operation_on_files_one_whole_checkpoint_is_there(tmp_path: Path, again: int) -> None:
    """Every instant of a save in turn: of step 1, which is there already, and of step 2, which makes 1 superfluous."""
    save_both(str(tmp_path / "first"), 1, "first")
    ends: list[int] = []
    while SAVED not in ends:
        path = tmp_path / f"killed-{len(ends)}"
        shutil.copytree(tmp_path / "first", path)
        ends.append(crash(path, again, "second", len(ends)))
        found = find_newest(path, RankGroup(0, 1), "full")
        assert found is not None
        assert found.skipped == ()
        assert (found.path / "shard-00001.safetensors").read_text() in ("first", "second")
        save_both(str(path), again, "third")
        assert [entry.name for entry in path.iterdir()] == [f"step-0000000{again}"]
        assert (path / f"step-0000000{again}" / "shard-00001.safetensors").read_text() == "third"
    assert len(ends) > 20


def crash(path: Path, step: int, content: str, operations: int) -> int:
    words = ["-S", "-m", "tests.trainer.checkpoint_crash", str(path), str(step), content, str(operations)]
    return subprocess.run([sys.executable, *words], cwd=Path(__file__).parents[2]).returncode


@pytest.mark.parametrize("also_writer", [True, False])
def test_killed_at_any_instant_the_last_published_one_is_whole(tmp_path: Path, also_writer: bool) -> None:
    chance = random.Random(also_writer)  # noqa: S311 - instants to kill at
    context = multiprocessing.get_context("forkserver")
    seen = 0
    for _ in range(4):
        process = context.Process(target=save_until_killed, args=(tmp_path, 4 << 20, seen + 1), daemon=True)
        process.start()
        writer = writer_of(process.pid or 0)
        until = time.monotonic() + chance.uniform(0.05, 0.6)
        while time.monotonic() < until or not folder.list_published(tmp_path):
            time.sleep(0.001)
        if also_writer:
            os.kill(writer, signal.SIGKILL)
        process.kill()
        process.join()
        wait_gone(writer)
        found = Checkpoints(tmp_path).newest()
        assert found is not None
        assert found.skipped == ()
        assert found.step >= seen
        seen = found.step
        loaded = blank(bytes_of(4 << 20, seen))
        Checkpoints(tmp_path).load(found, loaded)
        assert same(loaded, bytes_of(4 << 20, seen))


def wait_gone(pid: int) -> None:
    """A writer whose trainer is gone ends by itself."""
    until = time.monotonic() + 240
    while time.monotonic() < until:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return
        if state == "Z":
            return
        time.sleep(0.005)
    raise AssertionError(f"writer {pid} lives on")


def test_the_same_step_again_replaces_it(checkpoints: Checkpoints) -> None:
    for seed in (1, 2, 3):
        saved(checkpoints, 5, full(seed))
    assert [path.name for path in checkpoints.path.iterdir()] == ["step-00000005"]
    found = checkpoints.newest()
    assert found is not None
    loaded = blank(full())
    checkpoints.load(found, loaded)
    assert same(loaded, full(3))


def test_a_kill_between_the_moves_of_a_replacement_leaves_one(checkpoints: Checkpoints) -> None:
    """The names that a kill can leave behind, made by hand: each is found, and the next save puts them in order."""
    saved(checkpoints, 5, full(1))
    final = checkpoints.path / "step-00000005"
    final.rename(checkpoints.path / "step-00000005.r1")
    found = checkpoints.newest()
    assert found is not None
    assert found.step == 5
    saved(checkpoints, 5, full(2))
    assert [path.name for path in checkpoints.path.iterdir()] == ["step-00000005"]
    assert json.loads((final / "manifest.json").read_text())["step"] == 5


def test_no_rights_are_said_before_the_first_step_and_survived_later(tmp_path: Path) -> None:
    context = multiprocessing.get_context("forkserver")
    ours, theirs = context.Pipe()
    process = context.Process(target=without_rights, args=(tmp_path, theirs), daemon=True)
    process.start()
    theirs.close()
    assert ours.poll(60)
    refused, failed, published = ours.recv()
    process.join()
    assert "run.folder" in refused
    assert "cannot be written" in refused
    assert "Permission denied" in refused
    assert failed.startswith("step 2 was NOT saved: Permission denied")
    assert "the last good checkpoint is step-00000001" in failed
    assert published.startswith("step 3 published")


def without_rights(tmp_path: Path, end: multiprocessing.connection.Connection) -> None:
    obey_modes()
    path = tmp_path / "checkpoints"
    path.mkdir()
    checkpoints = Checkpoints(path)
    saved(checkpoints, 1, full())
    path.chmod(0o555)
    try:
        checkpoints.check_folder(full())
        refused = ""
    except ConfigError as error:
        refused = str(error)
    (failed,) = saved(checkpoints, 2, full())
    path.chmod(0o755)
    (published,) = saved(checkpoints, 3, full())
    checkpoints.close()
    end.send((refused, failed.message, published.message))


def obey_modes() -> None:
    """Root passes over the modes of files by a capability; without it, this process and its children obey them."""
    if os.geteuid() != 0:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    override, drop_from_bounding_set = 1, 24
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    sets = (ctypes.c_uint32 * 6)()
    assert libc.prctl(drop_from_bounding_set, override, 0, 0, 0) == 0
    assert libc.capget(header, sets) == 0
    for word in range(3):
        sets[word] &= ~(1 << override)
    assert libc.capset(header, sets) == 0
