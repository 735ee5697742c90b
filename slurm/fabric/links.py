"""Judge single links by perftest: each port of a node with the same port of its neighbours, against the port's rate.

An all-reduce shows that a node is slow; this shows which port, without NCCL and GPUs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from slurm.fabric.pairs import MIN_NODES, Pair
from slurm.fabric.verdict import TOLERANCE, Finding

# Latency differs by the number of switches on the way, and by the processor; three times the usual one is a fault.
_SLOW_LATENCY = 3.0
_MIN_LINKS_FOR_LATENCY = 3
# Growth of a counter during the run that is a finding; a link that goes down ends a job. On a good network, a run
# discards few packets; with RoCE, many mean that flow control does not work.
ERROR_LIMITS = {
    "symbol_error": 10,
    "port_rcv_errors": 10,
    "port_xmit_discards": 100,
    "link_error_recovery": 1,
    "link_downed": 1,
}


@dataclass(frozen=True)
class Link:
    """The measurement of a port of one node with the same port of another."""

    nodes: Pair
    port: str
    rate: float
    """Rate of the port in Gb/s."""
    gbps: float | None = None
    """Measured bandwidth; None if there was no connection."""
    us: float | None = None
    """Measured latency of a small message in microseconds."""
    error: str = ""

    @property
    def slow(self) -> bool:
        return self.gbps is None or self.gbps < TOLERANCE * self.rate

    def __str__(self) -> str:
        if self.gbps is None:
            return f"no connection at {self.port} ({self.error})"
        return f"{self.port} reaches {self.gbps:.1f} of {self.rate:g} Gb/s"


def judge_links(links: Sequence[Link]) -> list[Finding]:
    """Return the slow links: with their node, if all links of its port are slow and those of others are not."""
    return [*_judge_bandwidth(links), *_judge_latency(links)]


def judge_errors(before: Mapping[str, Mapping[str, int]], after: Mapping[str, Mapping[str, int]]) -> Iterator[str]:
    """Yield the counters of a node's ports that grew during the run."""
    for port, counters in after.items():
        for name, limit in ERROR_LIMITS.items():
            growth = counters.get(name, 0) - before.get(port, {}).get(name, 0)
            if growth >= limit:
                yield f"{name} of port {port} grew by {growth} during the run"


def _judge_bandwidth(links: Sequence[Link]) -> Iterator[Finding]:
    nodes = list(dict.fromkeys(node for link in links for node in link.nodes))
    for port in dict.fromkeys(link.port for link in links):
        of_port = [link for link in links if link.port == port]
        good = {node for link in of_port if not link.slow for node in link.nodes}
        bad = [node for node in nodes if node not in good and any(node in link.nodes for link in of_port)]
        if len(nodes) >= MIN_NODES and len(bad) * 2 <= len(nodes):
            for node in bad:
                best = max((link for link in of_port if node in link.nodes), key=lambda link: link.gbps or 0.0)
                yield Finding(node, f"{best} with all its neighbours")
            explained = set(bad)
        else:
            explained = set()
        for link in of_port:
            if link.slow and not explained & set(link.nodes):
                yield Finding("", f"{' and '.join(link.nodes)}: {link}")


def _judge_latency(links: Sequence[Link]) -> Iterator[Finding]:
    measured = [link.us for link in links if link.us is not None]
    if len(measured) < _MIN_LINKS_FOR_LATENCY:
        return
    usual = median(measured)
    for link in links:
        if link.us is not None and link.us > _SLOW_LATENCY * usual:
            text = f"{link.port} answers after {link.us:.1f} us, links usually after {usual:.1f}"
            yield Finding("", f"{' and '.join(link.nodes)}: {text}")
