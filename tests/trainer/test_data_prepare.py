"""Preparing text: the shards are the same for any number of workers and interruptions."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import random
import resource
import signal
import subprocess
import sys
import time
from collections import deque
from pathlib import Path

import numpy as np
import pytest

from tests.trainer.token_shards import read_tokens
from trainer.config.errors import ConfigError
from trainer.config.models import LlamaConfig
from trainer.config.schema import Config, DataConfig
from trainer.data import workers
from trainer.data.inputs import find_files, whole_range
from trainer.data.prepare import main
from trainer.data.registry import open_source
from trainer.data.shard import ReadOptions, ShardTask

COMMAND = [sys.executable, "-c", "import sys; from trainer.data.prepare import main; sys.exit(main(sys.argv[1:]))"]
# Long enough for a busy machine: it only ends a test that hangs.
LIMIT_S = 240
WORDS = ["muster", "trains", "what", "it", "builds", "on", "machines", "that", "were", "made", "ready"]


@pytest.fixture(scope="module")
def texts(tmp_path_factory) -> Path:
    """Make a folder with small files, one that spans shards, JSON lines, and files that must be left out."""
    folder = tmp_path_factory.mktemp("texts")
    rng = random.Random(1)
    lines = [" ".join(rng.choices(WORDS, k=12)) for _ in range(40_000)]
    (folder / "big.txt").write_text("\n".join(lines))
    (folder / "sub").mkdir()
    (folder / "sub" / "note.md").write_text("# Note\n\nwörld\n")
    (folder / "sub" / "code").write_text("print('no ending')\n")
    (folder / "docs.jsonl").write_text(
        "".join(json.dumps({"id": n, "text": lines[n]}) + "\n" for n in range(2000)) + "\n"
    )
    (folder / "picture").write_bytes(b"\x89PNG\0\0\0")
    (folder / "empty.txt").write_text("")
    (folder / ".hidden.txt").write_text("hidden")
    return folder


@pytest.fixture(scope="module")
def whole(texts, tmp_path_factory) -> Path:
    """Return the shards of an undisturbed run."""
    out = tmp_path_factory.mktemp("out") / "whole"
    assert main([str(texts), "--out", str(out), "--workers", "2", "--shard-tokens", "200_000"]) == 0
    return out


def arguments_for(texts: Path, out: Path, *more: str) -> list[str]:
    return [str(texts), "--out", str(out), "--shard-tokens", "200000", *more]


def read_bytes(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name not in {".lock", "job.json"}}


def test_byte_tokens_reproduce_the_documents_with_an_end_mark_after_each(texts, whole):
    index = json.loads((whole / "index.json").read_text())
    assert {name: index[name] for name in ("version", "dtype", "vocab_size", "tokenizer", "eos")} == {
        "version": 1,
        "dtype": "uint16",
        "vocab_size": 257,
        "tokenizer": "bytes",
        "eos": 256,
    }
    assert len(index["shards"]) > 10
    tokens = read_tokens(whole)
    ends = np.flatnonzero(tokens == 256)
    documents = [part[part < 256].astype(np.uint8).tobytes() for part in np.split(tokens, ends)][:-1]
    lines = (texts / "docs.jsonl").read_text().split("\n")[:2000]
    expected = [(texts / "big.txt").read_bytes(), *(json.loads(line)["text"].encode() for line in lines)]
    expected += [(texts / "sub" / "code").read_bytes(), (texts / "sub" / "note.md").read_bytes()]
    assert documents == expected


def test_shards_have_about_the_requested_size(whole):
    """Shards of JSON lines are smaller: bytes per token are estimated from the first text, which has no braces."""
    *full, last = [shard["tokens"] for shard in json.loads((whole / "index.json").read_text())["shards"]]
    assert all(0.6 < tokens / 200_000 < 1.4 for tokens in full)
    assert 0 < last < 1.4 * 200_000


def test_the_shards_can_be_trained_on(whole):
    data = DataConfig(kind="tokens", path=str(whole))
    source = open_source(Config(name="test", model=LlamaConfig(vocab_size=512, seq_len=128), data=data))
    assert source.length > 20_000
    assert bytes(source.fetch(np.array([0]), 0)["inputs"][0].astype(np.uint8)).split()[1].decode() in WORDS


def test_the_shards_do_not_depend_on_the_number_of_workers(texts, whole, tmp_path):
    assert main(arguments_for(texts, tmp_path / "one", "--workers", "1")) == 0
    assert read_bytes(tmp_path / "one") == read_bytes(whole)


def test_a_second_run_reuses_all_shards_and_reports_it(texts, whole, capsys):
    before = {path.name: path.stat().st_ino for path in whole.glob("*.bin")}
    assert main(arguments_for(texts, whole, "--workers", "1")) == 0
    assert f"reused {len(before)} of {len(before)} shards" in capsys.readouterr().out
    assert {path.name: path.stat().st_ino for path in whole.glob("*.bin")} == before


@pytest.mark.nightly
def test_a_run_killed_several_times_ends_with_the_same_bytes(texts, whole, tmp_path):
    out = tmp_path / "killed"
    interrupted = 0
    for enough in (1, 4, 8):
        run = _start(arguments_for(texts, out, "--workers", "2"))
        _until(lambda: len(list(out.glob("*.bin"))) >= enough)  # noqa: B023  # called before the loop goes on
        children = _children(run.pid)
        run.kill()
        run.wait()
        interrupted += not (out / "index.json").exists()
        _until(lambda: not any(_alive(pid) for pid in children))  # noqa: B023  # called before the loop goes on
    assert interrupted
    done = subprocess.run([*COMMAND, *arguments_for(texts, out, "--workers", "2")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "shards that an earlier run had finished" in done.stdout
    assert read_bytes(out) == read_bytes(whole)


def test_the_death_of_a_worker_is_reported_and_the_next_run_continues(texts, whole, tmp_path):
    out = tmp_path / "died"
    run = _start(arguments_for(texts, out, "--workers", "2"))
    _until(lambda: _workers(run.pid))
    os.kill(_workers(run.pid)[0], signal.SIGKILL)
    _, stderr = run.communicate(timeout=LIMIT_S)
    assert run.returncode == 2
    assert "a worker died (SIGKILL) while making shard-" in stderr
    assert "run the command again" in stderr
    assert main(arguments_for(texts, out, "--workers", "2")) == 0
    assert read_bytes(out) == read_bytes(whole)


@pytest.mark.parametrize("is_started", [False, True], ids=["before its first task", "between two tasks"])
def test_a_worker_that_died_before_it_gets_a_task_is_reported(texts, tmp_path, is_started):
    (file,) = find_files([str(texts / "sub" / "code")])
    tasks = deque(ShardTask(number, (whole_range(file),)) for number in range(2))
    worker = workers._Worker(workers.WorkerSettings(str(tmp_path), "bytes", ReadOptions("text")))
    if is_started:
        worker.start_next(tasks)
        assert [type(worker.receive()) for _ in range(2)] == [int, workers.FinishedTask]
    worker._process.kill()
    worker._process.join()
    worker.start_next(tasks)
    with pytest.raises(
        ConfigError, match=rf"--workers: a worker died \(SIGKILL\) while making shard-0000{int(is_started)}.bin"
    ):
        worker.receive()
    worker.stop()


def test_the_last_message_of_a_worker_is_reported(texts, tmp_path):
    """The tokenizer disappears after the command has loaded it and before a worker does."""
    worker = workers._Worker(workers.WorkerSettings(str(tmp_path), "nowhere", ReadOptions("text")))
    worker._process.join()
    worker.start_next(deque([ShardTask(0, (whole_range(find_files([str(texts / "sub" / "code")])[0]),))]))
    with pytest.raises(ConfigError, match="there is no file nowhere"):
        worker.receive()
    worker.stop()


def test_an_interrupt_prints_how_to_continue(texts, tmp_path):
    run = _start(arguments_for(texts, tmp_path / "out", "--workers", "1"))
    _until(lambda: _workers(run.pid))
    run.send_signal(signal.SIGINT)
    _, stderr = run.communicate(timeout=LIMIT_S)
    assert run.returncode == 130
    assert stderr.endswith("interrupted; run the same command again to continue\n")
    assert "Traceback" not in stderr


def test_an_interrupt_during_the_start_of_a_worker_is_delayed(texts, tmp_path):
    code = """
import os, signal, sys
from multiprocessing import util
from trainer.data import prepare

spawn = util.spawnv_passfds

def interrupted(path, words, handles):
    pid = spawn(path, words, handles)
    if any(b"spawn_main" in os.fsencode(word) for word in words):
        os.kill(os.getpid(), signal.SIGINT)
    return pid

util.spawnv_passfds = interrupted
sys.exit(prepare.main(sys.argv[1:]))
"""
    command = [sys.executable, "-c", code, *arguments_for(texts, tmp_path / "out", "--workers", "1")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 130
    assert done.stderr.endswith("interrupted; run the same command again to continue\n")
    assert "Traceback" not in done.stderr


def test_a_damaged_shard_is_made_again(texts, whole, tmp_path, capsys):
    out = tmp_path / "damaged"
    assert main(arguments_for(texts, out, "--workers", "2")) == 0
    good = read_bytes(out)
    shard = out / "shard-00003.bin"
    shard.write_bytes(good[shard.name][:-2] + b"\x00\x00")
    capsys.readouterr()
    assert main(arguments_for(texts, out, "--workers", "2")) == 0
    assert f"reused {len(good) - 2} of {len(good) - 1} shards" in capsys.readouterr().out
    assert read_bytes(out) == good


def test_shards_of_another_job_are_not_overwritten(texts, whole, capsys):
    before = read_bytes(whole)
    assert main(arguments_for(texts, whole, "--text-key", "body", "--shard-tokens", "7")) == 2
    message = capsys.readouterr().err
    assert "contains shards of another job (shard_tokens, text_key changed)" in message
    assert f"rm -r {whole}" in message
    assert read_bytes(whole) == before


def test_a_second_run_in_the_same_folder_is_refused(texts, tmp_path, capsys):
    (tmp_path / "out").mkdir()
    with (tmp_path / "out" / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert main(arguments_for(texts, tmp_path / "out")) == 2
    assert "another run is preparing" in capsys.readouterr().err


def test_a_full_disk_is_reported_and_the_next_run_continues(texts, whole, tmp_path):
    """A limit on the file size causes the same error in the same place as a full disk."""
    command = [*COMMAND, *arguments_for(texts, tmp_path / "out", "--workers", "1")]
    limits = (100_000, resource.RLIM_INFINITY)
    done = subprocess.run(
        command, capture_output=True, text=True, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    )
    assert done.returncode == 2
    assert "shard-00000.bin: [Errno 27] File too large; fix the cause and run the command again" in done.stderr
    assert main(arguments_for(texts, tmp_path / "out", "--workers", "2")) == 0
    assert read_bytes(tmp_path / "out") == read_bytes(whole)


@pytest.mark.nightly_cases("earlier")
@pytest.mark.parametrize("version", ["this", "earlier"])
def test_shards_with_another_end_of_text_token_are_not_reused(texts, tmp_path, capsys, version):
    """As after an eos_token was added to the tokenizer_config.json of a tokenizer that had none."""
    out = tmp_path / "out"
    assert main(arguments_for(texts, out, "--workers", "1")) == 0
    job = json.loads((out / "job.json").read_text())
    assert job["eos"] == 256
    if version == "this":  # interrupted before the index was written
        (out / "index.json").unlink()
        (out / "job.json").write_text(json.dumps({**job, "eos": None}))
    else:
        del job["eos"]
        (out / "job.json").write_text(json.dumps(job))
        assert main(arguments_for(texts, out, "--workers", "1")) == 0
        contents = json.loads((out / "index.json").read_text())
        (out / "index.json").write_text(json.dumps({**contents, "eos": None}))
    capsys.readouterr()
    assert main(arguments_for(texts, out, "--workers", "1")) == 2
    assert "contains shards of another job (eos changed); choose another folder" in capsys.readouterr().err


def test_a_terminal_shows_a_progress_bar(texts, tmp_path):
    terminal, child_terminal = pty.openpty()
    command = [*COMMAND, *arguments_for(texts, tmp_path / "out", "--workers", "1")]
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=child_terminal, check=True)
    os.close(child_terminal)
    output = _read_terminal(terminal)
    os.close(terminal)
    assert done.returncode == 0
    assert output.startswith("\r[")
    assert "100%" in output
    assert output.count("\n") == 1


def _read_terminal(terminal: int) -> str:
    """Return all that was written to a terminal whose other end is closed; the kernel hands it over in parts."""
    output = b""
    with contextlib.suppress(OSError):  # the end of a terminal is an error
        while part := os.read(terminal, 1 << 16):
            output += part
    return output.decode()


def _start(arguments: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen([*COMMAND, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def _workers(parent: int) -> list[int]:
    return [pid for pid in _children(parent) if b"spawn_main" in _command_line(pid)]


def _command_line(pid: int) -> bytes:
    """Return nothing if the process has ended meanwhile."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def _children(parent: int) -> list[int]:
    children = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == parent:
            children.append(int(path.parent.name))
    return children


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _until(condition, seconds=LIMIT_S):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.002)
