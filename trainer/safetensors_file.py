"""Read and write safetensors files (length, JSON header, raw bytes). Only reading tensors imports torch.

https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import json
import math
import os
import struct
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

# The types by their name in the file, with their name in torch and the bytes per value.
DTYPES = {
    "F64": ("float64", 8),
    "F32": ("float32", 4),
    "F16": ("float16", 2),
    "BF16": ("bfloat16", 2),
    "F8_E4M3": ("float8_e4m3fn", 1),
    "F8_E5M2": ("float8_e5m2", 1),
    "I64": ("int64", 8),
    "I32": ("int32", 4),
    "I16": ("int16", 2),
    "I8": ("int8", 1),
    "U64": ("uint64", 8),
    "U32": ("uint32", 4),
    "U16": ("uint16", 2),
    "U8": ("uint8", 1),
    "BOOL": ("bool", 1),
}
CODES = {torch_name: code for code, (torch_name, _) in DTYPES.items()}
MAX_HEADER_BYTES = 100_000_000


class SafetensorsError(Exception):
    """Raised if a file is not a safetensors file or is damaged; the message names the file and the problem."""


class TruncatedFile(SafetensorsError):
    """Raised if a file ends too early, because it was not written completely or has become shorter."""


class UnsupportedDtype(SafetensorsError):
    """Raised if a tensor to be written has a dtype that the format does not have."""


@dataclass(frozen=True)
class Entry:
    """A tensor in a file: the format's name of its dtype, its shape, and the position of its bytes in the file."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


@dataclass(frozen=True)
class Header:
    """The contents of a file."""

    tensors: dict[str, Entry]
    metadata: dict[str, str]


def write(path: Path | str, tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str] | None = None) -> None:
    """Write a file under a temporary name, sync it and rename it: a reader sees all of it or nothing."""
    described = {name: (dtype_code(tensor), tuple(tensor.shape)) for name, tensor in tensors.items()}
    head, entries = encode_header(described, metadata or {})
    path = Path(path)
    partial = path.with_name(path.name + ".partial")
    with partial.open("wb") as file:
        file.write(head)
        for name in entries:
            file.write(to_bytes(tensors[name]))
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def encode_header(
    described: Mapping[str, tuple[str, tuple[int, ...]]], metadata: Mapping[str, str], align: int = 8
) -> tuple[bytes, dict[str, Entry]]:
    """Return the head of a file with these tensors (dtype code and shape), and their entries in the order of the file.

    Wide types come first, so that every tensor starts at a multiple of its type's width. The length of the head is a
    multiple of `align`.
    """
    names = sorted(described, key=lambda name: (-DTYPES[described[name][0]][1], name))
    tree: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    at = 0
    for name in names:
        dtype, shape = described[name]
        size = math.prod(shape) * DTYPES[dtype][1]
        tree[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(tree, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % align)
    base = 8 + len(text)
    entries = {name: _entry(tree[name], base) for name in names}
    return struct.pack("<Q", len(text)) + text, entries


def read_header(path: Path | str) -> Header:
    """Read the header of a file; raise SafetensorsError if the file is truncated or its header is inconsistent."""
    path = Path(path)
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        length = struct.unpack("<Q", file.read(8))[0] if size >= 8 else -1  # noqa: PLR2004 - the length's own bytes
        if length > MAX_HEADER_BYTES:
            raise SafetensorsError(f"{path}: is not a safetensors file ({size} bytes)")
        if not 0 <= length <= size - 8:
            raise TruncatedFile(f"{path}: is not a safetensors file, or is truncated ({size} bytes)")
        text = file.read(length)
    try:
        tree = json.loads(text)
        metadata = tree.pop("__metadata__", {})
        tensors = {name: _entry(fields, 8 + length) for name, fields in tree.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise SafetensorsError(f"{path}: the header is damaged ({error!r})") from error
    for name, entry in tensors.items():
        _verify(path, name, entry, 8 + length, size)
    return Header(tensors, metadata)


class Reader:
    """The tensors of a file, each read when it is looked up.

    Never mapped: the kernel ends a process that reads a mapped file behind its end or on a failing disk (SIGBUS). Here
    a file that becomes shorter is an error that names it. A file stays readable after it was replaced or deleted.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        head = read_header(path)
        self.entries, self.metadata = head.tensors, head.metadata
        file = self.path.open("rb", buffering=0)
        self._descriptor = file.fileno()
        weakref.finalize(self, file.close)

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def __getitem__(self, name: str) -> torch.Tensor:
        return self.read_rows(name, 0, next(iter(self.entries[name].shape), 1))

    def read_rows(self, name: str, start: int, stop: int) -> torch.Tensor:
        """Return the rows of a tensor from `start` up to, but not including, `stop`; a scalar has one row.

        Raise TruncatedFile if the file has become too short.
        """
        import torch  # noqa: PLC0415 - start-up: the header can be read without it

        entry = self.entries[name]
        shape = (stop - start, *entry.shape[1:]) if entry.shape else ()
        tensor = torch.empty(shape, dtype=getattr(torch, DTYPES[entry.dtype][0]))
        row_bytes = math.prod(entry.shape[1:]) * DTYPES[entry.dtype][1]
        unread = memoryview(tensor.reshape(-1).view(torch.uint8).numpy())
        position = entry.start + start * row_bytes
        while unread:
            count = os.preadv(self._descriptor, [unread], position)
            if not count:
                size = os.fstat(self._descriptor).st_size
                message = f"became shorter while it was in use: {name} ends at byte {entry.end}, but it has {size}"
                raise TruncatedFile(f"{self.path}: {message}")
            unread, position = unread[count:], position + count
        return tensor


def dtype_code(tensor: torch.Tensor) -> str:
    """Return the code of the tensor's dtype."""
    name = str(tensor.dtype).removeprefix("torch.")
    if name not in CODES:
        raise UnsupportedDtype(f"dtype {name} is not allowed in a safetensors file; allowed: {', '.join(CODES)}")
    return CODES[name]


def to_bytes(tensor: torch.Tensor) -> memoryview:
    """Return the bytes of a tensor as they are in the file."""
    import torch  # noqa: PLC0415 - start-up: the header can be read without it

    flat = tensor.detach().to("cpu").contiguous().reshape(-1).view(torch.uint8)
    return flat.numpy().data


def _entry(fields: dict[str, Any], base: int) -> Entry:
    start, end = fields["data_offsets"]
    return Entry(fields["dtype"], tuple(int(n) for n in fields["shape"]), base + start, base + end)


def _verify(path: Path, name: str, entry: Entry, base: int, size: int) -> None:
    if entry.dtype not in DTYPES:
        raise SafetensorsError(f"{path}: {name} has dtype {entry.dtype}; allowed: {', '.join(DTYPES)}")
    expected = math.prod(entry.shape) * DTYPES[entry.dtype][1]
    if entry.end - entry.start != expected:
        raise SafetensorsError(f"{path}: {name} needs {expected} bytes and has {entry.end - entry.start}")
    if entry.start < base or min(entry.shape, default=0) < 0:
        raise SafetensorsError(f"{path}: {name} starts before the data or has a negative size")
    if entry.end > size:
        raise TruncatedFile(f"{path}: {name} ends at byte {entry.end}, but the file has {size}: it is truncated")
