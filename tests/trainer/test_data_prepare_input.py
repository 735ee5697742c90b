"""Input of `prepare`: files, tokenizers and folders that it rejects, and tokenizers that it can use."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.trainer.token_shards import read_tokens
from trainer.data.prepare import main


@pytest.mark.parametrize(
    ("name", "content", "more", "message"),
    [
        (
            "a.jsonl",
            b'{"text": "x"}\n{"body": "y"}\n',
            [],
            "the line at byte 14 is not a JSON object with text in 'text'",
        ),
        ("b.jsonl", b"not json\n", [], "the line at byte 0 is not a JSON object"),
        ("c.dat", b"\0\0", [], "c.dat is not text"),
        ("d.txt", b"", [], "no text in"),
        ("e.txt", b"x", ["--tokenizer", "nowhere"], "--tokenizer: there is no file nowhere; give `bytes`"),
        ("f.txt", b"x", ["--tokenizer", __file__], "is not a tokenizer"),
        ("g.txt", b"x", ["missing.txt"], "INPUT: there is no file or folder missing.txt"),
    ],
)
def test_invalid_input_is_reported(tmp_path, capsys, name, content, more, message):
    (tmp_path / name).write_bytes(content)
    assert main([str(tmp_path / name), *more, "--out", str(tmp_path / "out"), "--workers", "1"]) == 2
    assert message in capsys.readouterr().err


def test_a_tiny_text_is_reported_in_bytes_and_one_shard(tmp_path, capsys):
    (tmp_path / "a.txt").write_text("hello world\n")
    assert main([str(tmp_path / "a.txt"), "--out", str(tmp_path / "out"), "--workers", "1"]) == 0
    output = capsys.readouterr()
    assert "13 tokens in 1 shard of uint16" in output.out
    assert "12.0 of 12.0 B " in output.err


def test_an_unwritable_folder_is_reported(tmp_path, capsys):
    (tmp_path / "file").write_text("x")
    assert main([str(tmp_path / "file"), "--out", str(tmp_path / "file" / "out")]) == 2
    assert "--out: cannot write to" in capsys.readouterr().err


def test_a_hugging_face_tokenizer_can_be_used(tmp_path, capsys):
    folder = make_tokenizer(tmp_path / "tiny", 70_000)
    (tmp_path / "a.txt").write_text("muster trains muster")
    (tmp_path / "b.txt").write_text("builds")
    command = [str(tmp_path / "a.txt"), str(tmp_path / "b.txt"), "--tokenizer", str(folder)]
    assert main([*command, "--out", str(tmp_path / "out"), "--workers", "1"]) == 0
    index = json.loads((tmp_path / "out" / "index.json").read_text())
    assert (index["tokenizer"], index["dtype"], index["vocab_size"], index["eos"]) == ("tiny", "uint32", 70_000, 3)
    assert read_tokens(tmp_path / "out").tolist() == [0, 1, 0, 3, 69_999, 3]


def test_a_tokenizer_without_an_end_of_text_token_can_be_used(tmp_path, capsys):
    folder = make_tokenizer(tmp_path / "tiny", 100, end="")
    (tmp_path / "a.txt").write_text("muster trains")
    command = [str(tmp_path / "a.txt"), "--tokenizer", str(folder / "tokenizer.json")]
    assert main([*command, "--out", str(tmp_path / "out"), "--workers", "1"]) == 0
    assert "no end-of-text token" in capsys.readouterr().out
    assert read_tokens(tmp_path / "out").tolist() == [0, 1]


def test_a_missing_package_is_reported(tmp_path, monkeypatch, capsys):
    (tmp_path / "tokenizer.json").write_text("{}")
    (tmp_path / "a.txt").write_text("x")
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    command = [str(tmp_path / "a.txt"), "--tokenizer", str(tmp_path), "--out", str(tmp_path / "out")]
    assert main(command) == 2
    assert "needs the package tokenizers; install tokenizers (on a cluster: muster-env add" in capsys.readouterr().err


def test_the_command_does_not_import_torch():
    code = "import sys, trainer.data.prepare; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"


def make_tokenizer(folder: Path, size: int, end: str = "<end>") -> Path:
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace

    vocab = {"muster": 0, "trains": 1, "[UNK]": 2, end or "other": 3, "builds": size - 1}
    tokenizer = Tokenizer(WordLevel(vocab, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
    if end:
        (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": end}}))
    return folder
