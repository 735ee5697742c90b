"""Preparing text: the same shards whoever makes them, however often they are interrupted."""

from __future__ import annotations

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

from trainer.config.errors import ConfigError
from trainer.config.schema import Config, DataConfig, LlamaConfig
from trainer.data import crew
from trainer.data.inputs import find
from trainer.data.inputs import whole as whole_of
from trainer.data.prepare import main
from trainer.data.registry import open_source
from trainer.data.shard import Task

COMMAND = [sys.executable, "-c", "import sys; from trainer.data.prepare import main; sys.exit(main(sys.argv[1:]))"]
# Only ends what hangs: the machine may be busy with other things.
LIMIT_S = 240
WORDS = ["muster", "trains", "what", "it", "builds", "on", "machines", "that", "were", "made", "ready"]


@pytest.fixture(scope="module")
def texts(tmp_path_factory) -> Path:
    """A folder with small files, one that spans shards, lines of JSON, and what must be left out."""
    folder = tmp_path_factory.mktemp("texts")
    chance = random.Random(1)  # noqa: S311
    lines = [" ".join(chance.choices(WORDS, k=12)) for _ in range(40_000)]
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
    """What an undisturbed run makes."""
    out = tmp_path_factory.mktemp("out") / "whole"
    assert main([str(texts), "--out", str(out), "--workers", "2", "--shard-tokens", "200_000"]) == 0
    return out


def again(texts: Path, out: Path, *more: str) -> list[str]:
    return [str(texts), "--out", str(out), "--shard-tokens", "200000", *more]


def bytes_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name not in {".lock", "job.json"}}


def tokens_of(folder: Path) -> np.ndarray:
    index = json.loads((folder / "index.json").read_text())
    dtype = {"uint16": "<u2", "uint32": "<u4"}[index["dtype"]]
    return np.concatenate([np.fromfile(folder / shard["file"], dtype) for shard in index["shards"]])


def test_bytes_come_back_with_a_mark_after_each_document(texts, whole):
    index = json.loads((whole / "index.json").read_text())
    assert {name: index[name] for name in ("version", "dtype", "vocab_size", "tokenizer", "eos")} == {
        "version": 1,
        "dtype": "uint16",
        "vocab_size": 257,
        "tokenizer": "bytes",
        "eos": 256,
    }
    assert len(index["shards"]) > 10
    tokens = tokens_of(whole)
    ends = np.flatnonzero(tokens == 256)
    documents = [part[part < 256].astype(np.uint8).tobytes() for part in np.split(tokens, ends)][:-1]
    lines = (texts / "docs.jsonl").read_text().split("\n")[:2000]
    expected = [(texts / "big.txt").read_bytes(), *(json.loads(line)["text"].encode() for line in lines)]
    expected += [(texts / "sub" / "code").read_bytes(), (texts / "sub" / "note.md").read_bytes()]
    assert documents == expected


def test_shards_have_about_the_size_asked_for(whole):
    """Those of JSON lines are smaller: what a token takes is learned from the first text, here without braces."""
    *full, last = [shard["tokens"] for shard in json.loads((whole / "index.json").read_text())["shards"]]
    assert all(0.6 < tokens / 200_000 < 1.4 for tokens in full)
    assert 0 < last < 1.4 * 200_000


def test_training_can_read_them(whole):
    data = DataConfig(kind="tokens", path=str(whole))
    source = open_source(Config(name="test", model=LlamaConfig(vocab_size=512, seq_len=128), data=data))
    assert source.length > 20_000
    assert bytes(source.fetch(np.array([0]), 0)["inputs"][0].astype(np.uint8)).split()[1].decode() in WORDS


def test_the_number_of_workers_changes_nothing(texts, whole, tmp_path):
    assert main(again(texts, tmp_path / "one", "--workers", "1")) == 0
    assert bytes_of(tmp_path / "one") == bytes_of(whole)


def test_a_second_run_reuses_everything_and_says_so(texts, whole, capsys):
    before = {path.name: path.stat().st_ino for path in whole.glob("*.bin")}
    assert main(again(texts, whole, "--workers", "1")) == 0
    assert f"reused {len(before)} of {len(before)} shards" in capsys.readouterr().out
    assert {path.name: path.stat().st_ino for path in whole.glob("*.bin")} == before


def test_killed_again_and_again_it_ends_with_the_same_bytes(texts, whole, tmp_path):
    out = tmp_path / "killed"
    interrupted = 0
    for enough in (1, 4, 8):
        run = _start(again(texts, out, "--workers", "2"))
        _until(lambda: len(list(out.glob("*.bin"))) >= enough)  # noqa: B023
        workers = _children(run.pid)
        run.kill()
        run.wait()
        interrupted += not (out / "index.json").exists()
        _until(lambda: not any(_alive(pid) for pid in workers))  # noqa: B023
    assert interrupted
    done = subprocess.run([*COMMAND, *again(texts, out, "--workers", "2")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "shards that an earlier run had finished" in done.stdout
    assert bytes_of(out) == bytes_of(whole)


def test_a_worker_that_dies_is_reported_and_its_work_is_not_lost(texts, whole, tmp_path):
    out = tmp_path / "died"
    run = _start(again(texts, out, "--workers", "2"))
    _until(lambda: _workers(run.pid))
    os.kill(_workers(run.pid)[0], signal.SIGKILL)
    _, stderr = run.communicate(timeout=LIMIT_S)
    assert run.returncode == 2
    assert "a worker died (SIGKILL) at shard-" in stderr
    assert "run the command again" in stderr
    assert main(again(texts, out, "--workers", "2")) == 0
    assert bytes_of(out) == bytes_of(whole)


@pytest.mark.parametrize("is_started", [False, True], ids=["before its first task", "between two tasks"])
def test_a_worker_that_is_dead_when_it_is_given_a_task_is_reported_alike(texts, tmp_path, is_started):
    (file,) = find([str(texts / "sub" / "code")])
    tasks = deque(Task(number, (whole_of(file),)) for number in range(2))
    worker = crew._Worker(crew.Settings(str(tmp_path), "bytes", "text"))
    if is_started:
        worker.next(tasks)
        assert [type(worker.receive()) for _ in range(2)] == [int, crew.Done]
    worker._process.kill()
    worker._process.join()
    worker.next(tasks)
    with pytest.raises(ConfigError, match=rf"--workers: a worker died \(SIGKILL\) at shard-0000{int(is_started)}.bin"):
        worker.receive()
    worker.stop()


def test_what_a_worker_said_before_it_ended_is_heard(texts, tmp_path):
    """A tokenizer that breaks between the command's own look at it and a worker's."""
    worker = crew._Worker(crew.Settings(str(tmp_path), "nowhere", "text"))
    worker._process.join()
    worker.next(deque([Task(0, (whole_of(find([str(texts / "sub" / "code")])[0]),))]))
    with pytest.raises(ConfigError, match="there is no file nowhere"):
        worker.receive()
    worker.stop()


def test_an_interrupt_says_how_to_go_on(texts, tmp_path):
    run = _start(again(texts, tmp_path / "out", "--workers", "1"))
    _until(lambda: _workers(run.pid))
    run.send_signal(signal.SIGINT)
    _, stderr = run.communicate(timeout=LIMIT_S)
    assert run.returncode == 130
    assert stderr.endswith("stopped; the same command goes on from here\n")
    assert "Traceback" not in stderr


def test_an_interrupt_while_a_worker_starts_waits_until_it_has_started(texts, tmp_path):
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
    command = [sys.executable, "-c", code, *again(texts, tmp_path / "out", "--workers", "1")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 130
    assert done.stderr.endswith("stopped; the same command goes on from here\n")
    assert "Traceback" not in done.stderr


def test_a_damaged_shard_is_made_anew(texts, whole, tmp_path, capsys):
    out = tmp_path / "damaged"
    assert main(again(texts, out, "--workers", "2")) == 0
    good = bytes_of(out)
    shard = out / "shard-00003.bin"
    shard.write_bytes(good[shard.name][:-2] + b"\x00\x00")
    capsys.readouterr()
    assert main(again(texts, out, "--workers", "2")) == 0
    assert f"reused {len(good) - 2} of {len(good) - 1} shards" in capsys.readouterr().out
    assert bytes_of(out) == good


def test_shards_of_another_job_are_left_alone(texts, whole, capsys):
    before = bytes_of(whole)
    assert main(again(texts, whole, "--text-key", "body", "--shard-tokens", "7")) == 2
    message = capsys.readouterr().err
    assert "holds shards of another job: shard_tokens, text_key changed since" in message
    assert f"rm -r {whole}" in message
    assert bytes_of(whole) == before


def test_two_runs_at_once_do_not_mix(texts, tmp_path, capsys):
    (tmp_path / "out").mkdir()
    with (tmp_path / "out" / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert main(again(texts, tmp_path / "out")) == 2
    assert "another run is preparing" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "content", "more", "message"),
    [
        (
            "a.jsonl",
            b'{"text": "x"}\n{"body": "y"}\n',
            [],
            "the line at byte 14 is no JSON object with a text under 'text'",
        ),
        ("b.jsonl", b"not json\n", [], "the line at byte 0 is no JSON object"),
        ("c.dat", b"\0\0", [], "c.dat is not text"),
        ("d.txt", b"", [], "no text in"),
        ("e.txt", b"x", ["--tokenizer", "nowhere"], "--tokenizer: there is no file nowhere; give `bytes`"),
        ("f.txt", b"x", ["--tokenizer", __file__], "is not a tokenizer"),
        ("g.txt", b"x", ["missing.txt"], "INPUT: there is no file or folder missing.txt"),
    ],
)
def test_bad_input_is_named(tmp_path, capsys, name, content, more, message):  # noqa: PLR0913, PLR0917
    (tmp_path / name).write_bytes(content)
    assert main([str(tmp_path / name), *more, "--out", str(tmp_path / "out"), "--workers", "1"]) == 2
    assert message in capsys.readouterr().err


def test_a_folder_that_cannot_be_written(tmp_path, capsys):
    (tmp_path / "file").write_text("x")
    assert main([str(tmp_path / "file"), "--out", str(tmp_path / "file" / "out")]) == 2
    assert "--out: cannot write to" in capsys.readouterr().err


def test_a_disk_that_takes_no_more(texts, whole, tmp_path):
    """A limit on the size of files stands for it: the same error at the same place."""
    command = [*COMMAND, *again(texts, tmp_path / "out", "--workers", "1")]
    limits = (100_000, resource.RLIM_INFINITY)
    done = subprocess.run(
        command, capture_output=True, text=True, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    )
    assert done.returncode == 2
    assert "shard-00000.bin: [Errno 27] File too large; mend that and run the command again" in done.stderr
    assert main(again(texts, tmp_path / "out", "--workers", "2")) == 0
    assert bytes_of(tmp_path / "out") == bytes_of(whole)


def test_a_hugging_face_tokenizer(tmp_path, capsys):
    folder = _tokenizer(tmp_path / "tiny", 70_000)
    (tmp_path / "a.txt").write_text("muster trains muster")
    (tmp_path / "b.txt").write_text("builds")
    command = [str(tmp_path / "a.txt"), str(tmp_path / "b.txt"), "--tokenizer", str(folder)]
    assert main([*command, "--out", str(tmp_path / "out"), "--workers", "1"]) == 0
    index = json.loads((tmp_path / "out" / "index.json").read_text())
    assert (index["tokenizer"], index["dtype"], index["vocab_size"], index["eos"]) == ("tiny", "uint32", 70_000, 3)
    assert tokens_of(tmp_path / "out").tolist() == [0, 1, 0, 3, 69_999, 3]


def test_a_tokenizer_without_an_end_mark(tmp_path, capsys):
    folder = _tokenizer(tmp_path / "tiny", 100, end="")
    (tmp_path / "a.txt").write_text("muster trains")
    command = [str(tmp_path / "a.txt"), "--tokenizer", str(folder / "tokenizer.json")]
    assert main([*command, "--out", str(tmp_path / "out"), "--workers", "1"]) == 0
    assert "no end-of-text token" in capsys.readouterr().out
    assert tokens_of(tmp_path / "out").tolist() == [0, 1]


def test_a_missing_package_is_named(tmp_path, monkeypatch, capsys):
    (tmp_path / "tokenizer.json").write_text("{}")
    (tmp_path / "a.txt").write_text("x")
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    command = [str(tmp_path / "a.txt"), "--tokenizer", str(tmp_path), "--out", str(tmp_path / "out")]
    assert main(command) == 2
    assert "needs the package tokenizers; install tokenizers, or use bytes" in capsys.readouterr().err


def test_a_terminal_sees_a_bar_in_place(texts, tmp_path):
    ours, theirs = pty.openpty()
    command = [*COMMAND, *again(texts, tmp_path / "out", "--workers", "1")]
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=theirs, check=True)
    os.close(theirs)
    shown = os.read(ours, 1 << 16).decode()
    os.close(ours)
    assert done.returncode == 0
    assert shown.startswith("\r[")
    assert "100%" in shown
    assert shown.count("\n") == 1


def test_the_command_starts_without_torch():
    code = "import sys, trainer.data.prepare; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"


def _tokenizer(folder: Path, size: int, end: str = "<end>") -> Path:
    from tokenizers import Tokenizer  # noqa: PLC0415
    from tokenizers.models import WordLevel  # noqa: PLC0415
    from tokenizers.pre_tokenizers import Whitespace  # noqa: PLC0415

    vocab = {"muster": 0, "trains": 1, "[UNK]": 2, end or "other": 3, "builds": size - 1}
    tokenizer = Tokenizer(WordLevel(vocab, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
    if end:
        (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": end}}))
    return folder


def _start(arguments: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen([*COMMAND, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def _workers(parent: int) -> list[int]:
    return [pid for pid in _children(parent) if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def _children(parent: int) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == parent:
            found.append(int(path.parent.name))
    return found


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
