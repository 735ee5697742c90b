"""Evidence of the fabric that a job used: the network in NCCL's log, and the bytes that each RDMA port sent."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_PROVIDER = re.compile(r"NET/OFI Selected [Pp]rovider is (?P<name>[\w;-]+).*?\(found (?P<nics>\d+) nics\)")
_INFINIBAND = re.compile(r"NET/IB\s*: Using (?P<devices>(?:\[\d+\]\S+\s*)+)")
_USING = re.compile(
    r"(?:Using network|Assigned NET plugin|Initialized NET plugin) (?P<name>[\w /-]+?)(?: to comm|\s*$)", re.M
)
# Each of these lines means that a plugin failed to load, and that NCCL uses a slower network or none.
_COMPLAINTS = (
    "No plugin found",
    "Failed to initialize NET plugin",
    "Failed to initialize any NET plugin",
    "version 'EFA_",
    "NET/OFI No eligible providers",
    "NET/OFI Unable to find a provider",
)
# Counters of the EFA driver (Linux drivers/infiniband/hw/efa/efa_verbs.c); InfiniBand ports count words of 4 bytes.
_EFA_BYTES = ("tx_bytes", "rdma_read_bytes", "rdma_write_bytes")
_PORT_WORDS = ("port_xmit_data",)
_BYTES_PER_WORD = 4


@dataclass(frozen=True)
class Network:
    """The network that NCCL chose on a node."""

    name: str
    """`efa`, `infiniband`, `roce`, `socket`, or empty if the log does not name one."""
    devices: int = 0
    complaints: tuple[str, ...] = ()
    """Lines about plugins that could not be used."""


def parse_nccl_log(log: str) -> Network:
    """Return the network named in a log with NCCL_DEBUG=INFO."""
    complaints = tuple(dict.fromkeys(line.strip() for line in log.splitlines() if any(c in line for c in _COMPLAINTS)))
    if match := _PROVIDER.search(log):
        return Network("efa" if match["name"].startswith("efa") else match["name"], int(match["nics"]), complaints)
    if match := _INFINIBAND.search(log):
        devices = match["devices"].split()
        name = "roce" if all("/RoCE" in device for device in devices) else "infiniband"
        return Network(name, len(devices), complaints)
    if "NET/Socket" in log or any(match["name"].strip() == "Socket" for match in _USING.finditer(log)):
        return Network("socket", complaints=complaints)
    return Network("", complaints=complaints)


def read_counters(sysfs: Path) -> dict[str, int]:
    """Return the bytes that each port such as `mlx5_0:1` sent since boot; those in software do not count them."""
    ports = sorted((sysfs / "class" / "infiniband").glob("*/ports/*"))
    sent = {f"{port.parents[1].name}:{port.name}": _read_sent(port) for port in ports}
    return {name: count for name, count in sent.items() if count is not None}


def subtract_counters(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, int]:
    """Return the bytes that each port sent between two readings."""
    return {port: after[port] - before.get(port, 0) for port in after}


def list_idle_ports(sent: Mapping[str, int], min_bytes: int) -> list[str]:
    """Return the ports that sent less than `min_bytes`."""
    return [port for port, count in sent.items() if count < min_bytes]


def _read_sent(port: Path) -> int | None:
    """Return the bytes that a port sent; None if it has no such counter."""
    words = _read_values(port / "counters" / name for name in _PORT_WORDS)
    efa = _read_values(port / "hw_counters" / name for name in _EFA_BYTES)
    return sum(efa) + _BYTES_PER_WORD * sum(words) if words or efa else None


def _read_values(files: Iterable[Path]) -> list[int]:
    values = []
    for file in files:
        with suppress(OSError, ValueError):
            values.append(int(file.read_text(encoding="ascii")))
    return values
