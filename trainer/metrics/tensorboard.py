"""Write scalars as TensorBoard event files.

The tensorboard package is not used, because the format is simple and importing the package takes seconds. The format:
https://github.com/tensorflow/tensorboard/blob/master/tensorboard/compat/proto/event.proto inside records of
https://www.tensorflow.org/tutorials/load_data/tfrecord#tfrecords_format_details
"""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Mapping
from pathlib import Path

_SESSION_START = b"\x3a\x02\x08\x01"  # session_log { status: START }


class TensorBoard:
    """The event file of this process; it hides the steps from `first_step` on that earlier processes wrote."""

    def __init__(self, folder: Path, first_step: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        name = f"events.out.tfevents.{int(time.time()):010d}.{socket.gethostname()}.{os.getpid()}.{time.time_ns()}"
        self._file = (folder / name).open("wb", buffering=0)
        self._write(_encode_event(0) + _encode_bytes(3, b"brain.Event:2"))
        self._write(_encode_event(first_step) + _SESSION_START)

    def add(self, step: int, values: Mapping[str, float]) -> None:
        summary = b"".join(
            _encode_bytes(1, _encode_bytes(1, tag.encode()) + _encode_float(2, value)) for tag, value in values.items()
        )
        self._write(_encode_event(step) + _encode_bytes(5, summary))

    def close(self) -> None:
        self._file.close()

    def _write(self, data: bytes) -> None:
        length = struct.pack("<Q", len(data))
        self._file.write(length + _checksum(length) + data + _checksum(data))


def _encode_event(step: int) -> bytes:
    return b"\x09" + struct.pack("<d", time.time()) + b"\x10" + _encode_varint(step)


def _encode_bytes(field: int, data: bytes) -> bytes:
    return _encode_varint(field << 3 | 2) + _encode_varint(len(data)) + data


def _encode_float(field: int, value: float) -> bytes:
    try:
        return _encode_varint(field << 3 | 5) + struct.pack("<f", value)
    except OverflowError:  # beyond float32
        return _encode_varint(field << 3 | 5) + struct.pack("<f", float("inf") if value > 0 else float("-inf"))


def _encode_varint(value: int) -> bytes:
    out = bytearray()
    while value >> 7:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _checksum(data: bytes) -> bytes:
    """Return the masked CRC-32C of a record."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _CRC[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def _make_crc_table() -> list[int]:
    """Return the table of Castagnoli's polynomial, which the standard library does not have."""
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)  # noqa: PLW2901
        table.append(value)
    return table


_CRC = _make_crc_table()
