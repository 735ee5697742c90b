"""Whether what a job showed of the fabric is what the machine should give. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from slurm.fabric.nccl_log import Network

# Published figures were measured on quiet machines; a healthy pair stays well above this share of them.
TOLERANCE = 0.85


@dataclass(frozen=True)
class Wanted:
    fabric: str
    """tcp, efa or infiniband."""
    devices: int = 0
    """RDMA devices of each node; 0: not known."""
    busbw: Mapping[int, float] = field(default_factory=dict)
    """GB/s of bus bandwidth by message size in bytes; empty where nobody has measured the machine."""


@dataclass(frozen=True)
class Evidence:
    """What one job showed."""

    networks: Mapping[str, Network]
    """By node, from NCCL's log; empty where the job did not use NCCL."""
    idle: Mapping[str, Sequence[str]]
    """By node: devices that moved nothing."""
    busbw: Mapping[int, float]
    """GB/s by message size in bytes."""


@dataclass(frozen=True)
class Finding:
    node: str
    """Empty: the whole set of nodes."""
    text: str

    def __str__(self) -> str:
        return f"{self.node}: {self.text}" if self.node else self.text


def findings(evidence: Evidence, wanted: Wanted) -> list[Finding]:
    return [*_used(evidence, wanted), *_idle(evidence), *_slow(evidence, wanted)]


def size_to_judge(busbw: Mapping[int, float], wanted: Wanted) -> int | None:
    """The largest that both know: small messages measure latency."""
    return max((size for size in wanted.busbw if size in busbw), default=None)


def _used(evidence: Evidence, wanted: Wanted) -> list[Finding]:
    """On TCP there is nothing to fall back to. Elsewhere no word in the log is as bad as the wrong one."""
    if wanted.fabric == "tcp":
        return []
    if not evidence.networks:
        return [Finding("", f"no node says which network NCCL used; expected {wanted.fabric}")]
    found = []
    for node, network in evidence.networks.items():
        if network.name != wanted.fabric:
            why = f" ({network.complaints[0]})" if network.complaints else ""
            found.append(Finding(node, f"NCCL used {network.name or 'an unknown network'}, not {wanted.fabric}{why}"))
        elif wanted.devices and network.devices != wanted.devices:
            found.append(Finding(node, f"NCCL found {network.devices} of {wanted.devices} devices"))
    return found


def _idle(evidence: Evidence) -> list[Finding]:
    return [Finding(node, f"{', '.join(devices)} moved nothing") for node, devices in evidence.idle.items() if devices]


def _slow(evidence: Evidence, wanted: Wanted) -> list[Finding]:
    size = size_to_judge(evidence.busbw, wanted)
    if size is None:
        return []
    got, expected = evidence.busbw[size], wanted.busbw[size]
    if got >= TOLERANCE * expected:
        return []
    share = got / expected
    return [
        Finding("", f"{got:.1f} GB/s at {size // 2**20} MiB is {share:.0%} of the {expected:.1f} that it should be")
    ]
