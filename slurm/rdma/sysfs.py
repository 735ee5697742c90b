"""Read the RDMA devices of a node from sysfs: a shell function prints the files, and `parse_rdma` makes them data.

The function needs neither Python nor root, because the pre-flight runs it on machines that have nothing of ours.
https://www.kernel.org/doc/Documentation/ABI/stable/sysfs-class-infiniband describes the files.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

LinkLayer = Literal["InfiniBand", "Ethernet", ""]
"""As sysfs writes it; empty if it is another one or cannot be read."""
COUNTERS = {
    "symbol_error": 2**16 - 1,
    "link_error_recovery": 2**8 - 1,
    "link_downed": 2**8 - 1,
    "port_rcv_errors": 2**16 - 1,
    "port_xmit_discards": 2**16 - 1,
    "local_link_integrity_errors": 2**4 - 1,
    "excessive_buffer_overrun_errors": 2**4 - 1,
}
"""Counters of errors that are read, wherever the driver has them, with the value at which each stops.

The widths are those of the PortCounters attribute of InfiniBand (Linux drivers/infiniband/core/sysfs.c).
"""
_PORT_FILES = ("state", "phys_state", "rate", "link_layer")
_GID_FILES = ("gids/*", "gid_attrs/types/*", "gid_attrs/ndevs/*")
_COUNTER_FILES = tuple(f"{folder}/{name}" for folder in ("counters", "hw_counters") for name in COUNTERS)

# One `grep` reads all files; those that a driver does not have, and GIDs that are not in use, cannot be read.
_READER = r"""
read_rdma() {
  (
    cd "${SYSFS:-/sys}/class/infiniband" 2>/dev/null || exit 0
    for device in *; do
      if [ -d "$device/ports" ]; then printf 'rdma\t%s/pci\t%s\n' "$device" "$(readlink -f "$device/device")"; fi
    done
    grep -sH '' FILES |
      grep -v ':0000:0000:0000:0000:0000:0000:0000:0000$' | sed 's/^\([^:]*\):/rdma\t\1\t/'
    cd ../../bus/pci/devices 2>/dev/null || exit 0
    for gpu in $(grep -sl '^0x10de' */vendor); do
      case $(cat "${gpu%/*}/class") in
        0x0300* | 0x0302*) printf 'rdma\tgpu\t%s\n' "$(readlink -f "${gpu%/*}")" ;;
      esac
    done
  )
}
"""


@dataclass(frozen=True)
class Gid:
    """An address of a port."""

    index: int
    address: str
    """128 bits in groups of 16, as sysfs writes them."""
    kind: str = ""
    """`IB/RoCE v1` or `RoCE v2`."""
    netdev: str = ""


@dataclass(frozen=True)
class RdmaPort:
    """A port of an RDMA device."""

    device: str
    port: int
    state: str = ""
    """ACTIVE, INIT (no subnet manager has configured it), ARMED or DOWN."""
    phys_state: str = ""
    """LinkUp, Polling (nothing answers at the other end of the cable), Disabled and others."""
    gbps: float = 0.0
    """Rate at which data can be sent; 0 if it cannot be read."""
    link_layer: LinkLayer = ""
    gids: tuple[Gid, ...] = ()
    counters: Mapping[str, int] = field(default_factory=dict)
    pci_path: tuple[str, ...] = ()
    """PCI addresses from the root port down to the device; empty for a device in software."""
    node_guid: str = ""
    """GUID of the device, by which the subnet knows it, in groups of 16 bits."""

    @property
    def name(self) -> str:
        """Device and port as NCCL writes them, e.g. `mlx5_0:1`."""
        return f"{self.device}:{self.port}"

    @property
    def active(self) -> bool:
        return self.state == "ACTIVE"

    def describe_state(self) -> str:
        """Return the state for a message, with what it means for InfiniBand."""
        if self.state == "INIT" and self.link_layer == "InfiniBand":
            return "INIT (no subnet manager has configured it)"
        state = self.state or "in an unknown state"
        return f"{state} ({self.phys_state})" if self.phys_state else state


@dataclass(frozen=True)
class RdmaFacts:
    """The RDMA ports of a node, and where its GPUs are on the PCI bus."""

    ports: tuple[RdmaPort, ...] = ()
    gpus: tuple[tuple[str, ...], ...] = ()
    """PCI addresses from the root port down to each NVIDIA GPU."""


def render_reader(*, gids: bool = False, counters: bool = False) -> str:
    """Return the shell function `read_rdma`, which prints `rdma<tab>file<tab>value`; $SYSFS is the root of sysfs.

    GIDs are a thousand files and more on a large machine, so they are read only on request.
    """
    files = ["*/node_guid", *(f"*/ports/*/{name}" for name in _PORT_FILES)]
    files += [f"*/ports/*/{name}" for name in _GID_FILES if gids]
    files += [f"*/ports/*/{name}" for name in _COUNTER_FILES if counters]
    return _READER.replace("FILES", " ".join(files))


def split_lines(text: str) -> Iterator[tuple[str, str]]:
    """Yield file and value of each line that `read_rdma` has printed."""
    for line in text.splitlines():
        kind, *fields = line.split("\t", 2)
        if kind == "rdma" and len(fields) == 2:  # noqa: PLR2004  # file and value
            yield fields[0], fields[1]


def parse_rdma(rows: Iterable[tuple[str, str]]) -> RdmaFacts:
    """Return the facts in the files of sysfs and their values."""
    devices: dict[str, dict[str, str]] = defaultdict(dict)
    ports: dict[tuple[str, int], dict[str, str]] = defaultdict(dict)
    gpus: list[tuple[str, ...]] = []
    for path, value in rows:
        device, _, below = path.partition("/")
        if path == "gpu":
            gpus.append(_split_pci(value))
        elif below.startswith("ports/"):
            _ports, number, name = below.split("/", 2)
            ports[device, int(number)][name] = value.strip()
        else:
            devices[device][below] = value.strip()
    return RdmaFacts(
        tuple(_build_port(*key, ports[key], devices[key[0]]) for key in sorted(ports, key=_natural_order)),
        tuple(sorted(gpus)),
    )


def _build_port(device: str, port: int, files: Mapping[str, str], of_device: Mapping[str, str]) -> RdmaPort:
    layer = _parse_layer(files.get("link_layer", ""))
    indices = sorted(int(name[len("gids/") :]) for name in files if name.startswith("gids/"))
    counters = {name: int(_read_counter(name, files)) for name in COUNTERS if _read_counter(name, files).isdigit()}
    return RdmaPort(
        device,
        port,
        # `4: ACTIVE`
        state=files.get("state", "").partition(":")[2].strip(),
        phys_state=files.get("phys_state", "").partition(":")[2].strip(),
        gbps=_parse_rate(files.get("rate", ""), layer),
        link_layer=layer,
        gids=tuple(
            Gid(
                index,
                files[f"gids/{index}"],
                files.get(f"gid_attrs/types/{index}", ""),
                files.get(f"gid_attrs/ndevs/{index}", ""),
            )
            for index in indices
        ),
        counters=counters,
        pci_path=_split_pci(of_device.get("pci", "")),
        node_guid=of_device.get("node_guid", ""),
    )


def _parse_layer(text: str) -> LinkLayer:
    return "InfiniBand" if text == "InfiniBand" else "Ethernet" if text == "Ethernet" else ""


def _parse_rate(text: str, layer: LinkLayer) -> float:
    """Return the Gb/s for data of a rate such as `400 Gb/sec (4X NDR)`."""
    speed = re.match(r"\d+(\.\d+)?", text)
    # Up to QDR, InfiniBand sends 10 bits for 8 bits of data. 40 Gb/s Ethernet is called QDR, too, but carries 40.
    coded = layer == "InfiniBand" and re.search(r"\b[SDQ]DR\b", text)
    return (float(speed[0]) if speed else 0.0) * (0.8 if coded else 1.0)


def _read_counter(name: str, files: Mapping[str, str]) -> str:
    return files.get(f"counters/{name}") or files.get(f"hw_counters/{name}", "")


def _split_pci(path: str) -> tuple[str, ...]:
    return tuple(part for part in path.split("/") if re.fullmatch(r"[\da-f]{4,}:[\da-f]{2}:[\da-f]{2}\.[\da-f]", part))


def _natural_order(key: tuple[str, int]) -> tuple[list[tuple[int, str]], int]:
    """Return a key that sorts mlx5_2 before mlx5_10."""
    parts = re.findall(r"\d+|\D+", key[0])
    return [(int(part), "") if part.isdigit() else (-1, part) for part in parts], key[1]
