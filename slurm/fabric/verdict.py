"""Compare the evidence of a job with the fabric that is expected of the machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from slurm.fabric.evidence import Network

# Published figures were measured on idle machines; a healthy pair stays well above this share of them.
TOLERANCE = 0.85


@dataclass(frozen=True)
class ExpectedFabric:
    """The fabric that is expected of a machine."""

    fabric: str
    """`tcp`, `efa`, `infiniband` or `roce`."""
    devices: int = 0
    """RDMA devices of each node; 0 if unknown."""
    busbw: Mapping[int, float] = field(default_factory=dict)
    """Bus bandwidth in GB/s by message size in bytes; empty if there are no figures for the machine."""
    ports: Mapping[str, float] = field(default_factory=dict)
    """Gb/s of each InfiniBand or RoCE port of a node that jobs use."""
    nccl: bool = True
    """Whether the run uses NCCL; without GPUs it uses TCP, and only perftest shows the fabric."""


@dataclass(frozen=True)
class Evidence:
    """The evidence of one job across all nodes."""

    networks: Mapping[str, Network]
    """Network of each node, from NCCL's log; empty if the job did not use NCCL."""
    idle: Mapping[str, Sequence[str]]
    """RDMA ports of each node that sent nothing."""
    busbw: Mapping[int, float]
    """Bus bandwidth in GB/s by message size in bytes."""
    devices: Mapping[str, int] = field(default_factory=dict)
    """RDMA devices that each node itself expects; for nodes that are not listed, the machine's number counts."""


@dataclass(frozen=True)
class Finding:
    """A difference between the fabric and what is expected of it."""

    node: str
    """Name of the node; empty if the finding concerns all nodes."""
    text: str

    def __str__(self) -> str:
        return f"{self.node}: {self.text}" if self.node else self.text


def compare(evidence: Evidence, expected: ExpectedFabric) -> list[Finding]:
    """Return all differences between the evidence and what is expected."""
    return [*_compare_networks(evidence, expected), *_list_idle(evidence), *_compare_speed(evidence, expected)]


def choose_size(busbw: Mapping[int, float], expected: ExpectedFabric) -> int | None:
    """Return the largest measured message size with an expected figure, because small messages measure latency."""
    return max((size for size in expected.busbw if size in busbw), default=None)


def _compare_networks(evidence: Evidence, expected: ExpectedFabric) -> list[Finding]:
    """Return the nodes on which NCCL used another or an unknown network; TCP needs no check, nothing is slower."""
    if expected.fabric == "tcp" or not expected.nccl:
        return []
    if not evidence.networks:
        return [Finding("", f"no node reports which network NCCL used; expected {expected.fabric}")]
    findings = []
    for node, network in evidence.networks.items():
        devices = evidence.devices.get(node, expected.devices)
        if network.name != expected.fabric:
            used = network.name or "an unknown network"
            why = f" ({network.complaints[0]})" if network.complaints else ""
            findings.append(Finding(node, f"NCCL used {used}, not {expected.fabric}{why}"))
        elif devices and network.devices != devices:
            findings.append(Finding(node, f"NCCL found {network.devices} of {devices} devices"))
    return findings


def _list_idle(evidence: Evidence) -> list[Finding]:
    return [Finding(node, f"{', '.join(ports)} sent nothing") for node, ports in evidence.idle.items() if ports]


def _compare_speed(evidence: Evidence, expected: ExpectedFabric) -> list[Finding]:
    size = choose_size(evidence.busbw, expected)
    if size is None:
        return []
    speed, target = evidence.busbw[size], expected.busbw[size]
    if speed >= TOLERANCE * target:
        return []
    return [
        Finding("", f"{speed:.1f} GB/s at {size // 2**20} MiB is {speed / target:.0%} of the expected {target:.1f}")
    ]
