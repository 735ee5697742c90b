"""Shards from a web server: downloaded once per node, checked, read ahead, and what a user is told about failures."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.trainer.token_shards import write_shards
from tests.trainer.web_folder import WebFolder, serve
from trainer.config.check import check
from trainer.config.errors import ConfigError
from trainer.config.models import LlamaConfig, ResNetConfig
from trainer.config.schema import Config, DataConfig, EvaluationConfig
from trainer.data import remote, shard_arrays, shard_cache
from trainer.data.registry import Sources, open_sources
from trainer.data.shard_folder import Reading
from trainer.data.shard_order import ShardOrder
from trainer.data.tokens import TokenShards
from trainer.life.cause import Cause, classify

SHARDS = 6
WINDOWS = 10


@pytest.fixture
def web(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[WebFolder]:
    """Serve tmp_path/data; retries do not wait."""
    monkeypatch.setattr(remote, "_RETRY_DELAYS_S", (0.0,) * 6)
    write_shards(tmp_path / "data", *(range(n, n + 4 * WINDOWS + 1) for n in range(SHARDS)))
    with serve(tmp_path) as folder:
        yield folder


def open_remote(web: WebFolder, name: str = "data", *, window: int = 0, cache_bytes: int = 0) -> TokenShards:
    return TokenShards(f"{web.url}/{name}", 4, 100, Reading(1, window, str(web.root / "cache"), cache_bytes))


def copies(web: WebFolder) -> list[Path]:
    return sorted((web.root / "cache").glob("*.bin"))


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_samples_are_those_of_a_local_folder_and_shards_are_downloaded_once(web: WebFolder) -> None:
    local = TokenShards(str(web.root / "data"), 4, 100)
    ids = np.arange(local.length)[::-1]
    for _ in range(2):
        source = open_remote(web)
        assert (source.length, source.fingerprint) == (local.length, local.fingerprint)
        assert source.fetch(ids, 0)["targets"].tolist() == local.fetch(ids, 0)["targets"].tolist()
    assert web.count(".bin") == SHARDS
    assert not list((web.root / "cache").glob("*.partial"))


def test_processes_that_need_the_same_shard_download_it_once(web: WebFolder) -> None:
    sources = [open_remote(web) for _ in range(8)]
    threads = [threading.Thread(target=source.fetch, args=(np.array([0]), None)) for source in sources]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert web.count(".bin") == 1


@pytest.mark.parametrize("has_ranges", [True, False])
def test_a_download_continues_where_it_broke_off(web: WebFolder, has_ranges: bool) -> None:
    source = open_remote(web)
    web.has_ranges = has_ranges
    web.statuses, web.break_after = [503, 429], [30, 20]
    expected = TokenShards(str(web.root / "data"), 4, 100).fetch(np.array([3]), None)["inputs"].tolist()
    assert source.fetch(np.array([3]), None)["inputs"].tolist() == expected
    ranges = [byte_range for name, byte_range in web.requests if name.endswith(".bin")]
    assert ranges[:4] == ["", "", "", "bytes=30-"]
    assert ranges[4:] == ["bytes=50-" if has_ranges else "bytes=30-"]


def test_a_partial_file_of_a_killed_process_is_replaced(web: WebFolder) -> None:
    source = open_remote(web)
    source.fetch(np.array([0]), None)
    [path] = copies(web)
    path.unlink()
    path.with_name(f"{path.stem}.{socket.gethostname()}-1.partial").write_bytes(b"x" * 1000)
    assert open_remote(web).fetch(np.array([0]), None)["inputs"].tolist() == [[0, 1, 2, 3]]
    assert copies(web) == [path]
    assert list_partials(web) == []


def list_partials(web: WebFolder) -> list[str]:
    return sorted(path.name for path in (web.root / "cache").glob("*.partial"))


def test_unfinished_files_of_killed_processes_are_removed_and_others_are_not(web: WebFolder) -> None:
    source, cache, host = open_remote(web), web.root / "cache", socket.gethostname()
    killed, running, elsewhere, old = (f"{letter * 64}" for letter in "abcd")
    (cache / f"{killed}.{host}-1.partial").write_bytes(b"x")
    (cache / f"{running}.{host}-2.partial").write_bytes(b"x")
    (cache / f"{elsewhere}.other-node-1.partial").write_bytes(b"x")
    (cache / f"{old}.other-node-1.partial").write_bytes(b"x")
    os.utime(cache / f"{old}.other-node-1.partial", (0, 0))
    with (cache / f"{running}.bin.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        source.fetch(np.array([0]), None)
    assert list_partials(web) == [f"{running}.{host}-2.partial", f"{elsewhere}.other-node-1.partial"]


def test_an_answer_without_bytes_is_retried_once(web: WebFolder) -> None:
    web.requests.clear()
    source = open_remote(web)
    web.break_after = [0, 30, 0]
    assert source.fetch(np.array([0]), None)["inputs"].tolist() == [[0, 1, 2, 3]]
    web.break_after = [0, 0]
    with pytest.raises(ConfigError, match="it has 0 bytes instead of 82"):
        source.fetch(np.array([WINDOWS]), None)


def test_reading_ahead_continues_after_an_outage(web: WebFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_arrays, "_OUTAGE_S", 0.01)
    source = open_remote(web)
    web.statuses = [503] * 8
    source.tokens.read_ahead(0, 0)
    wait_until(lambda: len(copies(web)) == SHARDS)


def test_the_first_retry_is_logged_with_the_address(web: WebFolder, capsys: pytest.CaptureFixture[str]) -> None:
    web.statuses = [503, 503]
    open_remote(web)
    log = capsys.readouterr().err
    assert log.count("index.json") == 1
    assert f"{web.url}/data/index.json: 503 Service Unavailable; trying again" in log


def test_the_default_cache_is_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_cache, "_SCRATCH", tmp_path / "no disk")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    folder = shard_cache.default_cache()
    assert folder.stat().st_mode & 0o777 == 0o700
    assert shard_cache.default_cache() == folder
    folder.rename(tmp_path / "elsewhere")
    folder.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match=r"data.cache: .* is not a folder of this user; set data.cache to"):
        shard_cache.default_cache()


def test_the_next_window_is_downloaded_before_it_is_needed(web: WebFolder) -> None:
    source = open_remote(web, window=2)
    order = ShardOrder(1, source.group_sizes, 2)
    source.fetch(order.sample_ids(0, 1), 0)
    wait_until(lambda: len(copies(web)) == 4)
    source.fetch(order.sample_ids(2 * WINDOWS, 1), 0)
    wait_until(lambda: len(copies(web)) == SHARDS)
    assert web.count(".bin") == SHARDS


def test_all_shards_are_read_ahead_if_all_are_shuffled_together(web: WebFolder) -> None:
    source = open_remote(web)  # without it, nothing would be read ahead
    source.fetch(np.array([0]), 0)
    wait_until(lambda: len(copies(web)) == SHARDS)


def test_a_limited_cache_holds_the_shards_of_two_windows(web: WebFolder) -> None:
    size = 2 * (4 * WINDOWS + 1)
    source = open_remote(web, window=1, cache_bytes=2 * size)
    local = TokenShards(str(web.root / "data"), 4, 100)
    order = ShardOrder(1, source.group_sizes, 1)
    for position in range(0, 2 * order.length, 5):
        ids = order.sample_ids(position, 5)
        epoch = position // order.length
        assert source.fetch(ids, epoch)["inputs"].tolist() == local.fetch(ids, epoch)["inputs"].tolist()
        assert sum(map(measure_copy, copies(web))) <= 2 * size


def test_a_copy_that_becomes_shorter_is_downloaded_again(web: WebFolder) -> None:
    source = open_remote(web)
    expected = source.fetch(np.array([0, 9]), None)["inputs"].tolist()
    [path] = copies(web)
    os.truncate(path, 20)
    assert source.fetch(np.array([0, 9]), None)["inputs"].tolist() == expected
    assert web.count(".bin") == 2
    assert path.stat().st_size == 2 * (4 * WINDOWS + 1)


def measure_copy(path: Path) -> int:
    """Return the size of a cached shard, 0 if reading ahead has removed it meanwhile."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def test_a_full_disk_is_named(web: WebFolder, small_disk: Path) -> None:
    write_shards(web.root / "big", np.zeros(2_000_000), vocab_size=100)
    source = TokenShards(f"{web.url}/big", 4, 100, Reading(cache=str(small_disk)))
    with pytest.raises(
        OSError, match=r"no space for the 0.004 GB of shard-00000.bin; use another disk for data.cache"
    ) as caught:
        source.fetch(np.array([0]), None)
    assert caught.value.errno == errno.ENOSPC
    assert classify(caught.value) is Cause.DISK_FULL
    assert not list(small_disk.glob("*.partial"))


def damage_index(web: WebFolder) -> None:
    (web.root / "data" / "index.json").write_text("<html>")


def forbid(web: WebFolder) -> None:
    web.statuses = [403]


def remove_index(web: WebFolder) -> None:
    (web.root / "data" / "index.json").unlink()


def remove_shard(web: WebFolder) -> None:
    (web.root / "data" / "shard-00000.bin").unlink()


def truncate_shard(web: WebFolder) -> None:
    shard = web.root / "data" / "shard-00000.bin"
    shard.write_bytes(shard.read_bytes()[:20])


def change_shard(web: WebFolder) -> None:
    shard = web.root / "data" / "shard-00000.bin"
    shard.write_bytes(shard.read_bytes()[::-1])


def lengthen_shard(web: WebFolder) -> None:
    shard = web.root / "data" / "shard-00000.bin"
    shard.write_bytes(shard.read_bytes() * 2)


def escape_cache(web: WebFolder) -> None:
    index = web.root / "data" / "index.json"
    index.write_text(index.read_text().replace('"sha256": "', '"sha256": "../../'))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (damage_index, "data/index.json is not a valid index of token shards, version 1 (Expecting value"),
        (forbid, "data/index.json must not be read (403 Forbidden); use an address that needs no login"),
        (remove_index, "/data/index.json (Not Found); check the address; prepare writes index.json last"),
        (remove_shard, "/data/shard-00000.bin (Not Found); check the address"),
        (truncate_shard, "shard-00000.bin is shorter than index.json says; upload the folder again"),
        (change_shard, "is not the file that index.json describes: it has the checksum"),
        (lengthen_shard, "is not the file that index.json describes: it has 164 bytes instead of 82"),
        (escape_cache, "index.json has '../../"),
    ],
)
def test_damage_is_named(web: WebFolder, damage: Callable[[WebFolder], None], message: str) -> None:
    damage(web)
    with pytest.raises(ConfigError) as caught:
        open_remote(web).fetch(np.array([0]), None)
    assert str(caught.value).startswith("data.path: ")
    assert message in str(caught.value)
    assert copies(web) == []


def test_a_truncated_shard_is_named_on_a_server_without_ranges(web: WebFolder) -> None:
    truncate_shard(web)
    web.has_ranges = False
    with pytest.raises(ConfigError, match="it has 20 bytes instead of 82"):
        open_remote(web).fetch(np.array([0]), None)


def test_a_server_that_is_down_is_a_failure_of_the_network(web: WebFolder) -> None:
    web.statuses = [503] * 7
    with pytest.raises(ConnectionError, match=r"index.json: 503 Service Unavailable") as caught:
        open_remote(web)
    assert classify(caught.value) is Cause.NETWORK
    # Nothing listens on port 9 of loopback.
    with pytest.raises(ConnectionError):
        TokenShards("http://127.0.0.1:9/data", 4, 100, Reading(cache=str(web.root / "cache")))


def test_a_cache_that_cannot_be_written_is_named(web: WebFolder) -> None:
    (web.root / "file").write_text("")
    with pytest.raises(ConfigError, match=r"data.cache: .*file/cache cannot be written \(Not a directory\)"):
        TokenShards(f"{web.url}/data", 4, 100, Reading(cache=str(web.root / "file" / "cache")))


def make(kind: str = "tokens", share: float = 0, **data: object) -> Config:
    model = ResNetConfig() if kind == "images" else LlamaConfig()
    return Config(
        name="test", model=model, data=DataConfig(kind=kind, **data), evaluation=EvaluationConfig(share=share)
    )


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            make(path="gs://b/x"),
            "data.path: gs://b/x has an unknown scheme; use a local folder, or one of s3://, https://",
        ),
        (make("images", path="s3://b/x"), "data.path: s3://b/x is remote, but only token shards are"),
        (make(mixture=("gs://b/x=1",)), "data.mixture: gs://b/x has an unknown scheme"),
        (make(path="x", cache="/local"), "data.cache: /local, but no path is remote"),
        (make(path="x", cache_gb=3.0, shuffle_shards=2), "data.cache_gb: 3.0, but no path is remote"),
        (make(path="s3://b/x", cache_gb=3.0), "data.cache_gb: 3, but every batch needs all shards"),
        (make(path="s3://b/x", cache_gb=3.0, shuffle_shards=2, share=0.1), "but evaluation.share reads the end of"),
        (
            make(path="https://me:secret@b/x"),
            "data.path: https://b/x contains a user name or a password; leave them out",
        ),
        (make(path="gs://me@b:80/x"), "data.path: gs://b:80/x contains a user name"),
        (
            make(path="https://b/x?secret"),
            "data.path: https://b/x is followed by ? or #; give the address of the folder",
        ),
        (make(path="s3://b/x#secret"), "data.path: s3://b/x is followed by ? or #"),
        (
            make(path="https://b:secret/x"),
            "data.path: an address has an invalid server or port; use s3://BUCKET/FOLDER",
        ),
        (make(path="https://[secret/x"), "data.path: an address has an invalid server or port"),
        (make(path="https://b/a folder"), "data.path: 'https://b/a folder' contains a space"),
        (make(mixture=("https://me:secret@b/x?secret=1",)), "data.mixture: https://b/x contains a user name"),
        (make(mixture=("https://me:secret@b/x?secret",)), "data.mixture: 'https://...b/x?...' is not PATH=WEIGHT"),
        (make("synthetic", shuffle_shards=2), "data.shuffle_shards: 2, but data.kind is synthetic; set it to 0"),
    ],
)
def test_nonsense_is_rejected(config: Config, message: str) -> None:
    problems = check(config)
    assert len(problems) == 1
    assert message in str(problems[0])
    assert "secret" not in str(problems[0])


def test_an_address_with_a_password_is_refused_wherever_it_comes_from() -> None:
    with pytest.raises(ConfigError, match="https://b/x contains a user name or a password") as caught:
        remote.RemoteFolder("https://me:secret@b/x")
    assert "secret" not in str(caught.value)


def test_a_limited_cache_has_room_for_the_shards_of_the_evaluation(web: WebFolder) -> None:
    size = 2 * (4 * WINDOWS + 1)
    write_shards(web.root / "held_out", *(range(n, n + 4 * WINDOWS + 1) for n in range(50, 53)))
    data = DataConfig(kind="tokens", path=f"{web.url}/data", seq_len=4, shuffle_shards=1, cache=str(web.root / "cache"))
    model, evaluation = LlamaConfig(vocab_size=100, seq_len=8), EvaluationConfig(path=f"{web.url}/held_out")

    def open_limited(limit_bytes: int) -> Sources:
        limited = replace(data, cache_gb=limit_bytes / 1e9)
        return open_sources(Config(name="test", model=model, data=limited, evaluation=evaluation))

    with pytest.raises(ConfigError, match=r"shards and those of evaluation.path, 4.1e-07 GB"):
        open_limited(4 * size)
    sources = open_limited(5 * size)
    assert sources.evaluation is not None
    order = ShardOrder(0, sources.training.group_sizes, 1)
    for position in range(0, order.length, WINDOWS):
        sources.training.fetch(order.sample_ids(position, WINDOWS), 0)
        sources.evaluation.fetch(np.arange(sources.evaluation.length), None)
    assert sum("held_out" in name and name.endswith(".bin") for name, _ in web.requests) == 3


def test_a_cache_that_is_too_small_is_rejected(web: WebFolder) -> None:
    data = DataConfig(
        kind="tokens", path=f"{web.url}/data", seq_len=4, shuffle_shards=2, cache_gb=1e-7, cache=str(web.root / "cache")
    )
    with pytest.raises(
        ConfigError, match=r"data.cache_gb: 1e-07 is too little for two times data.shuffle_shards=2 shards"
    ):
        open_sources(Config(name="test", model=LlamaConfig(vocab_size=100, seq_len=8), data=data))
