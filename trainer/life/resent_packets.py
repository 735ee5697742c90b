"""Read from the kernel how many TCP segments this host sent, and how many of them again because they were lost."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

# Of the network of this process: the nodes of a local cluster each have their own.
_COUNTERS = Path("/proc/self/net/snmp")
_PROTOCOL, _SENT, _RESENT = "Tcp:", "OutSegs", "RetransSegs"


@dataclass(frozen=True)
class SentPackets:
    """Numbers of TCP segments."""

    sent: int = 0
    resent: int = 0

    def __sub__(self, earlier: SentPackets) -> SentPackets:
        """Return what was sent since an earlier reading."""
        return SentPackets(self.sent - earlier.sent, self.resent - earlier.resent)


def read_sent_packets(counters: Path = _COUNTERS) -> SentPackets:
    """Return the numbers since the host booted; zeros where the kernel has no such counters."""
    try:
        lines = counters.read_text().splitlines()
    except OSError:
        return SentPackets()
    names, values = ([line.split() for line in lines if line.startswith(_PROTOCOL)] + [[], []])[:2]
    counted = dict(zip(names, values, strict=False))
    return SentPackets(int(counted.get(_SENT, 0)), int(counted.get(_RESENT, 0)))
