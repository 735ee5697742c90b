"""Bytes that each RDMA device of a node has moved, before and after a job. Pure but for `read`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

DEVICES = Path("/sys/class/infiniband")
# Of the EFA driver (Linux drivers/infiniband/hw/efa/efa_verbs.c); InfiniBand ports count words of 4 bytes.
_EFA = ("tx_bytes", "rdma_read_bytes", "rdma_write_bytes")
_WORDS = ("port_xmit_data",)
_WORD = 4


def read(devices: Path = DEVICES) -> dict[str, int]:
    """Bytes sent since boot, by device."""
    return {device.name: _sent(device) for device in sorted(devices.glob("*"))}


def moved(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, int]:
    return {device: after[device] - before.get(device, 0) for device in after}


def idle(sent: Mapping[str, int], least: int) -> list[str]:
    """Devices that moved less than `least` bytes while the others worked."""
    return [device for device, count in sent.items() if count < least]


def _sent(device: Path) -> int:
    port = device / "ports" / "1"
    return _total(port / "hw_counters" / name for name in _EFA) + _WORD * _total(port / "counters" / n for n in _WORDS)


def _total(files: Iterable[Path]) -> int:
    total = 0
    for file in files:
        with suppress(OSError, ValueError):
            total += int(file.read_text(encoding="ascii"))
    return total
