"""Preparing JSON lines, Parquet and compressed files: nested keys, cuts at row groups, and rows without text."""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from trainer.data.prepare import main

EOS = 256


def prepare(source: Path, out: Path, *options: str) -> int:
    return main([str(source), "--out", str(out), "--workers", "1", *options])


def read_documents(out: Path) -> list[str]:
    shards = json.loads((out / "index.json").read_text())["shards"]
    tokens = np.concatenate([np.fromfile(out / shard["file"], "<u2") for shard in shards])
    ends = np.flatnonzero(tokens == EOS)
    return [part[part < EOS].astype(np.uint8).tobytes().decode() for part in np.split(tokens, ends)][: len(ends)]


def write_parquet(path: Path, rows: list[dict[str, object]], group: int) -> Path:
    parquet.write_table(pyarrow.Table.from_pylist(rows), path, row_group_size=group)
    return path


TEXTS = [f"text {number} " * 20 for number in range(50)]


def test_row_groups_are_divided_among_shards(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "a.parquet", [{"id": n, "text": text} for n, text in enumerate(TEXTS)], 5)
    assert prepare(path, tmp_path / "out", "--shard-tokens", "1500") == 0
    shards = json.loads((tmp_path / "out" / "index.json").read_text())["shards"]
    assert 3 <= len(shards) <= 10
    assert read_documents(tmp_path / "out") == TEXTS
    # Workers do not change the bytes, and a folder of files is read in the order of their names.
    (tmp_path / "folder").mkdir()
    path.rename(tmp_path / "folder" / "a.parquet")
    (tmp_path / "folder" / "b.txt").write_text("more")
    assert prepare(tmp_path / "folder", tmp_path / "two", "--shard-tokens", "1500", "--workers", "2") == 0
    assert read_documents(tmp_path / "two") == [*TEXTS, "more"]


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_dots_lead_into_nested_objects(tmp_path: Path, kind: str) -> None:
    rows = [{"data": {"body": text}} for text in TEXTS[:3]]
    path = tmp_path / f"a.{kind}"
    if kind == "parquet":
        write_parquet(path, rows, 2)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows) + json.dumps({"data.body": "flat"}) + "\n")
    assert prepare(path, tmp_path / "out", "--text-key", "data.body") == 0
    assert read_documents(tmp_path / "out") == TEXTS[:3] + (["flat"] if kind == "jsonl" else [])


@pytest.mark.parametrize("suffix", ["gz", "zst"])
def test_compressed_files_are_read(tmp_path: Path, suffix: str) -> None:
    lines = "".join(json.dumps({"text": text}) + "\n" for text in TEXTS).encode()
    plain = b"a line\n" * 400_000
    folder = tmp_path / "in"
    folder.mkdir()
    for name, content in (("a.jsonl", lines), ("b.txt", plain), ("c.log", b"of a log"), ("d.tar", bytes(99))):
        if suffix == "gz":
            (folder / f"{name}.gz").write_bytes(gzip.compress(content))
        else:
            with pyarrow.CompressedOutputStream(str(folder / f"{name}.zst"), "zstd") as file:
                file.write(content)
    assert prepare(folder, tmp_path / "out") == 0
    assert read_documents(tmp_path / "out") == [*TEXTS, plain.decode(), "of a log"]


def test_bad_rows_are_skipped_counted_and_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a.jsonl").write_text('{"text": "one"}\nnot json\n{"text": 7}\n[1]\n{"text": "two"}\n')
    write_parquet(folder / "b.parquet", [{"text": "three"}, {"text": None}, {"text": "four"}], 2)
    assert prepare(folder, tmp_path / "out") == 2
    error = capsys.readouterr().err
    assert "a.jsonl: the line at byte 16 is not a JSON object with text in 'text'; fix or remove it, name the" in error
    assert "or skip such rows with --skip-bad" in error
    for _ in range(2):  # the second time, the shard of the first is reused
        assert prepare(folder, tmp_path / "skipping", "--skip-bad") == 0
        output = capsys.readouterr().out
        assert f"skipped 4 rows without text, listed in {tmp_path}/skipping/*.skipped.jsonl; the first: " in output
        assert "a.jsonl: the line at byte 16 is not a JSON object" in output
    assert read_documents(tmp_path / "skipping") == ["one", "two", "three", "four"]
    listed = (tmp_path / "skipping" / "shard-00000.skipped.jsonl").read_text().splitlines()
    assert json.loads(listed[-1])["place"] == "row 1"
    # The rows that are skipped are part of the job.
    assert prepare(folder, tmp_path / "skipping") == 2
    assert "contains shards of another job (skip_bad changed)" in capsys.readouterr().err


def test_skipped_rows_do_not_make_shards_smaller(tmp_path: Path) -> None:
    rows = [{"text": "123456789"} if number % 10 == 0 else {"other": "123456789"} for number in range(1000)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert prepare(tmp_path / "a.jsonl", tmp_path / "out", "--skip-bad", "--shard-tokens", "500") == 0
    assert len(list((tmp_path / "out").glob("*.bin"))) == 2


def test_a_mistyped_key_is_reported_before_the_whole_text_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainer.data.prepare._MAX_BYTES_WITHOUT_TEXT", 1000)
    (tmp_path / "a.jsonl").write_text('{"text": "x"}\n' * 1000)
    assert prepare(tmp_path / "a.jsonl", tmp_path / "out", "--skip-bad", "--text-key", "txet") == 2
    error = capsys.readouterr().err
    assert (
        f"INPUT: no text in the first 1008 bytes of {tmp_path}/a.jsonl; check the inputs, and --text-key=txet" in error
    )
    assert not list((tmp_path / "out").glob("*.bin"))


def test_a_missing_column_is_reported_with_those_that_exist(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_parquet(tmp_path / "a.parquet", [{"id": 1, "body": "x"}], 1)
    assert prepare(path, tmp_path / "out") == 2
    assert "a.parquet has no column 'text'; name the column of the text with --text-key: id, body" in (
        capsys.readouterr().err
    )


@pytest.mark.parametrize("name", ["a.txt.gz", "a.jsonl.gz", "a.txt.zst", "a.parquet"])
def test_damaged_files_are_named(tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / name
    if name.endswith(".gz"):
        path.write_bytes(gzip.compress(b'{"text": "x"}\n' * 10_000)[:-9])
    elif name.endswith(".zst"):
        path.write_bytes(b"this is not compressed")
    else:
        write_parquet(path, [{"text": "x" * 1000}], 1)
        path.write_bytes(path.read_bytes()[:-20])
    assert prepare(path, tmp_path / "out") == 2
    assert f"INPUT: {path} is damaged (" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["a.parquet", "a.jsonl.zst"])
def test_a_missing_package_is_reported(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / name).write_bytes(b"x")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert prepare(tmp_path / name, tmp_path / "out") == 2
    assert f"{name} needs the package pyarrow; install it (muster-env add pyarrow), or convert" in (
        capsys.readouterr().err
    )
