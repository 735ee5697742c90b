"""Plan which ports of two nodes are measured with each other: pure functions that both nodes run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from slurm.fabric.pairs import Pair
from slurm.fabric.perftest import FIRST_TCP_PORT, PROGRAMS


@dataclass(frozen=True)
class NodePort:
    """A port that jobs use on a node, as the other node of a pair has to know it."""

    rate: float
    """Rate of the port in Gb/s."""
    error: str = ""
    """Why the port cannot be measured; empty if it can be."""


@dataclass(frozen=True)
class PlannedLink:
    """A port of the first node of a pair and a port of the second that are measured with each other."""

    ports: tuple[str, str]
    rate: float
    """The higher one of both ports' rates in Gb/s, so that a port that has become slow is noticed at both ends."""
    tcp_port: int
    """The first of the TCP ports at which the programs of the first node wait."""
    error: str = ""
    """Why the link cannot be measured; empty if it can be."""

    @property
    def name(self) -> str:
        """The port's name for messages."""
        return self.ports[1] or self.ports[0]


def plan_links(pair: Pair, first: Mapping[str, NodePort], second: Mapping[str, NodePort]) -> list[PlannedLink]:
    """Return the links of a pair of nodes; ports that cannot be measured are in it with the reason."""
    return [
        PlannedLink(
            ports,
            max(of_node[port].rate for port, of_node in zip(ports, (first, second)) if port),  # noqa: B905  # Python 3.9
            FIRST_TCP_PORT + place * len(PROGRAMS),
            "; ".join(_list_errors(pair, ports, (first, second))),
        )
        for place, ports in enumerate(_match_ports(list(first), list(second)))
    ]


def _match_ports(first: Sequence[str], second: Sequence[str]) -> list[tuple[str, str]]:
    """Return the ports that belong together; a name is empty if that node does not use such a port.

    Ports of the same name are connected to the same switches. Machines of another kind have other names, and only the
    order of their ports can be the same.
    """
    if len(first) == len(second) and not set(first) & set(second):
        return list(zip(first, second))  # noqa: B905  # The node's own Python may be 3.9.
    names = dict.fromkeys([*first, *second])
    return [(name if name in first else "", name if name in second else "") for name in names]


def _list_errors(
    pair: Pair, ports: tuple[str, str], of_nodes: tuple[Mapping[str, NodePort], Mapping[str, NodePort]]
) -> Iterator[str]:
    for node, port, of_node in zip(pair, ports, of_nodes):  # noqa: B905  # The node's own Python may be 3.9.
        if not port:
            yield f"{node} does not use this port"
        elif of_node[port].error:
            yield f"{node}: {of_node[port].error}"
