"""Safetensors files are compatible with the safetensors package, and damaged ones are rejected."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path

import pytest
import safetensors.torch
import torch

from trainer import safetensors_file
from trainer.life.cause import Cause, classify
from trainer.safetensors_file import DTYPES, Reader, SafetensorsError, TruncatedFile, UnsupportedDtype, read_header

ODD = {
    "scalar": torch.tensor(3.5),
    "bytes": torch.arange(5, dtype=torch.uint8),
    "flags": torch.tensor([True, False, True]),
    "half": torch.randn(3, 5).to(torch.bfloat16),
    "empty": torch.empty(0, 4),
    "turned": torch.randn(4, 6).t(),
    "long": torch.arange(-3, 3),
    "grosse Tür": torch.randn(2, 2, 2),
}


def test_files_are_compatible_with_the_safetensors_package(tmp_path: Path) -> None:
    safetensors_file.write(tmp_path / "ours", ODD, {"step": "7"})
    theirs = safetensors.torch.load_file(tmp_path / "ours")
    safetensors.torch.save_file({name: value.contiguous() for name, value in ODD.items()}, tmp_path / "theirs")
    for file in ("ours", "theirs"):
        reader = Reader(tmp_path / file)
        assert set(reader) == set(ODD)
        for name, value in ODD.items():
            assert torch.equal(reader[name], value)
            assert torch.equal(theirs[name], value)
    assert read_header(tmp_path / "ours").metadata == {"step": "7"}
    assert not list(tmp_path.glob("*.partial"))


def test_every_dtype_round_trips(tmp_path: Path) -> None:
    raw = torch.arange(64, dtype=torch.uint8) % 2
    tensors = {code: raw.view(getattr(torch, name)) for code, (name, _) in DTYPES.items()}
    safetensors_file.write(tmp_path / "all", tensors)
    reader = Reader(tmp_path / "all")
    for code, value in tensors.items():
        assert reader[code].dtype == value.dtype
        assert torch.equal(reader[code].view(torch.uint8), raw)
        assert reader.entries[code].start % DTYPES[code][1] == 0


def test_changing_a_tensor_does_not_change_the_file(tmp_path: Path) -> None:
    safetensors_file.write(tmp_path / "a", {"x": torch.zeros(4)})
    before = (tmp_path / "a").read_bytes()
    Reader(tmp_path / "a")["x"].add_(1)
    assert (tmp_path / "a").read_bytes() == before


def test_rows_are_read_without_the_others(tmp_path: Path) -> None:
    safetensors_file.write(tmp_path / "a", ODD)
    reader = Reader(tmp_path / "a")
    assert torch.equal(reader.read_rows("half", 1, 3), ODD["half"][1:3])
    assert torch.equal(reader.read_rows("empty", 0, 0), ODD["empty"])
    assert torch.equal(reader.read_rows("scalar", 0, 1), ODD["scalar"])
    os.truncate(tmp_path / "a", reader.entries["half"].start + 2 * 5 * 2)
    assert torch.equal(reader.read_rows("half", 0, 2), ODD["half"][:2])


def test_a_file_that_becomes_shorter_is_an_error_that_names_it(tmp_path: Path) -> None:
    safetensors_file.write(tmp_path / "a", {"x": torch.arange(1 << 16)})
    reader = Reader(tmp_path / "a")
    end, size = reader.entries["x"].end, 1 << 18
    os.truncate(tmp_path / "a", size)
    with pytest.raises(TruncatedFile) as caught:
        reader["x"]
    reason = f"became shorter while it was in use: x ends at byte {end}, but it has {size}"
    assert str(caught.value) == f"{tmp_path}/a: {reason}"
    assert classify(caught.value) is Cause.STORAGE


def test_a_file_that_is_replaced_is_read_to_its_end(tmp_path: Path) -> None:
    safetensors_file.write(tmp_path / "a", {"x": torch.zeros(4)})
    reader = Reader(tmp_path / "a")
    safetensors_file.write(tmp_path / "a", {"x": torch.ones(2)})
    assert torch.equal(reader["x"], torch.zeros(4))


def test_an_unsupported_dtype_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedDtype, match="complex64 is not allowed") as caught:
        safetensors_file.write(tmp_path / "a", {"x": torch.zeros(2, dtype=torch.complex64)})
    assert classify(caught.value) is Cause.USER_CODE


def make_file(tree: object, data: bytes = b"") -> bytes:
    text = tree if isinstance(tree, bytes) else json.dumps(tree).encode()
    return struct.pack("<Q", len(text)) + text + data


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is not a safetensors file, or is truncated (0 bytes)"),
        (make_file({"x": {}})[:-1], "is not a safetensors file, or is truncated (16 bytes)"),
        (b"\xff" * 64, "is not a safetensors file (64 bytes)"),
        (make_file(b"{nonsense"), "the header is damaged"),
        (make_file([1]), "the header is damaged"),
        (make_file({"x": {"dtype": "F32"}}), "the header is damaged"),
        (
            make_file({"x": {"dtype": "F33", "shape": [1], "data_offsets": [0, 4]}}, bytes(4)),
            "x has dtype F33; allowed: ",
        ),
        (
            make_file({"x": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}, bytes(4)),
            "x needs 8 bytes and has 4",
        ),
        (make_file({"x": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}, bytes(4)), "it is truncated"),
        (
            make_file({"x": {"dtype": "F32", "shape": [1], "data_offsets": [-9, -5]}}, bytes(4)),
            "starts before the data",
        ),
    ],
)
def test_a_damaged_file_is_rejected(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "bad").write_bytes(content)
    with pytest.raises(SafetensorsError, match="bad: ") as caught:
        read_header(tmp_path / "bad")
    assert message in str(caught.value)
    # Only what was cut off is a matter of the filesystem.
    assert (classify(caught.value) is Cause.STORAGE) is ("truncated" in message)
