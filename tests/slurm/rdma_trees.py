"""Folders like /sys of real machines with RDMA devices, and what the reader prints about them.

Sources of the values:
- DGX H100 (ConnectX-7): names and PCI buses of the RDMA devices next to GPUs from the NVIDIA DGX H100 user guide,
  table 6; bus of the first GPU from NVIDIA/nccl#1131; the rate of an NDR port from linux-rdma/perftest#318. Bridges,
  other buses, the other ports and counters are composed, and so are ports with HDR.
- RoCE: GIDs with their indices and types from NVIDIA/nccl#769; states and rates of active and unused ports of a
  ConnectX-7 from geerlingguy/sbc-reviews#92.
- Soft-RoCE (rxe): state, rate, link layer and the missing folder `counters` as seen in a virtual machine.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from slurm.rdma.sysfs import RdmaFacts, parse_rdma, render_reader, split_lines

NDR = {"state": "4: ACTIVE", "phys_state": "5: LinkUp", "rate": "400 Gb/sec (4X NDR)", "link_layer": "InfiniBand"}
HDR = NDR | {"rate": "200 Gb/sec (4X HDR)"}
UNCABLED = NDR | {"state": "1: DOWN", "phys_state": "2: Polling", "rate": "10 Gb/sec (4X SDR)"}
ROCE = NDR | {"rate": "200 Gb/sec (2X NDR)", "link_layer": "Ethernet"}
ROCE_UNUSED = ROCE | {"state": "1: DOWN", "phys_state": "3: Disabled", "rate": "40 Gb/sec (4X QDR)"}
SOFT_ROCE = ROCE | {"rate": "2.5 Gb/sec (1X SDR)", "hw_counters/link_downed": "1"}
NO_ERRORS = {"counters/symbol_error": "0", "counters/link_downed": "0", "counters/port_xmit_discards": "0"}
NO_GID = "0000:0000:0000:0000:0000:0000:0000:0000"
GIDS = {
    "gids/0": "fe80:0000:0000:0000:0ac0:ebff:feda:1cfb",
    "gid_attrs/types/0": "IB/RoCE v1",
    "gid_attrs/ndevs/0": "eth2",
    "gids/1": "fe80:0000:0000:0000:0ac0:ebff:feda:1cfb",
    "gid_attrs/types/1": "RoCE v2",
    "gid_attrs/ndevs/1": "eth2",
    "gids/2": "0000:0000:0000:0000:0000:ffff:c800:d106",
    "gid_attrs/types/2": "IB/RoCE v1",
    "gid_attrs/ndevs/2": "eth2",
    "gids/3": "0000:0000:0000:0000:0000:ffff:c800:d106",
    "gid_attrs/types/3": "RoCE v2",
    "gid_attrs/ndevs/3": "eth2",
    "gids/4": NO_GID,
}
# Buses of the GPU and of the port that are behind the same PCIe switch, by the port's device.
DGX_PAIRS = {
    "mlx5_0": ("15", "1b", "18"),
    "mlx5_3": ("37", "43", "40"),
    "mlx5_4": ("48", "52", "4f"),
    "mlx5_5": ("59", "61", "5e"),
    "mlx5_6": ("97", "9d", "9a"),
    "mlx5_9": ("b7", "c3", "c0"),
    "mlx5_10": ("c7", "d1", "ce"),
    "mlx5_11": ("d7", "df", "dc"),
}
DGX_OTHERS = {"mlx5_1": ("26", "29"), "mlx5_2": ("26", "2a"), "mlx5_7": ("a7", "aa"), "mlx5_8": ("a7", "ab")}


def add_device(sysfs: Path, name: str, pci: Sequence[str], ports: Mapping[int, Mapping[str, str]]) -> None:
    """Add an RDMA device; `pci` has the addresses from the root port down, none for a device in software."""
    parent = _add_pci(sysfs, pci) if pci else sysfs / "devices/virtual"
    folder = parent / "infiniband" / name
    folder.mkdir(parents=True)
    if pci:
        (folder / "device").symlink_to(parent)
    for number, files in ports.items():
        for file, value in files.items():
            path = folder / "ports" / str(number) / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{value}\n")
    link = sysfs / "class/infiniband" / name
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(folder)


def add_gpu(sysfs: Path, pci: Sequence[str]) -> None:
    """Add an NVIDIA GPU."""
    folder = _add_pci(sysfs, pci)
    (folder / "vendor").write_text("0x10de\n")
    (folder / "class").write_text("0x030200\n")


def make_dgx_h100(sysfs: Path, **changes: dict[str, str]) -> Path:
    """Create a DGX H100: a port next to each of 8 GPUs, 2 active ones for storage, and 2 without a cable.

    `changes` replaces files of the port of a device.
    """
    for device, (root, gpu, port) in DGX_PAIRS.items():
        switch = (f"0000:{root}:01.0", f"0000:{root}:02.0")
        add_gpu(sysfs, (*switch, f"0000:{gpu}:00.0"))
        files = NDR | NO_ERRORS | changes.get(device, {})
        add_device(sysfs, device, (*switch, f"0000:{port}:00.0"), {1: files})
    for device, (root, port) in DGX_OTHERS.items():
        files = (NDR if device in ("mlx5_1", "mlx5_7") else UNCABLED) | changes.get(device, {})
        add_device(sysfs, device, (f"0000:{root}:01.0", f"0000:{port}:00.0"), {1: files})
    return sysfs


def read_tree(sysfs: Path, *, gids: bool = True, counters: bool = True) -> RdmaFacts:
    """Run the reader on a folder and return the facts."""
    return parse_rdma(split_lines(print_tree(sysfs, gids=gids, counters=counters)))


def print_tree(sysfs: Path, *, gids: bool = True, counters: bool = True) -> str:
    """Return what the reader prints about a folder."""
    script = f"SYSFS={sysfs}\n{render_reader(gids=gids, counters=counters)}\nread_rdma\n"
    return subprocess.run(["sh", "-euc", script], check=True, capture_output=True, text=True).stdout


def _add_pci(sysfs: Path, pci: Sequence[str]) -> Path:
    folder = sysfs.joinpath("devices", f"pci{pci[0].rpartition(':')[0]}", *pci)
    folder.mkdir(parents=True)
    link = sysfs / "bus/pci/devices" / pci[-1]
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(folder)
    (folder / "vendor").write_text("0x15b3\n")
    return folder
