"""Predict the trainer's own all-reduces on CPUs from what their schedules send, and two measured rates.

A pattern sends its bytes step by step, in chunks that overlap. So a large all-reduce takes as long as its bottleneck:

- the processors: all bytes that the ranks of a node send and receive, at the rate of plain messages between them;
- the link of a node: all bytes that its ranks send to other nodes, at the rate of the link.

A small one takes as long as its steps, each of which waits for a message of another rank.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Literal, get_args

from trainer.collectives import double_tree, halving_doubling, hierarchical, ring
from trainer.collectives.schedule import Schedule, check_nodes

Pattern = Literal["ring", "halving_doubling", "tree", "hierarchical"]


@dataclass(frozen=True)
class Machine:
    """What limits messages between ranks on CPUs."""

    node_gb_s: float
    """Rate at which the ranks of a node together send and receive plain messages, in GB/s (1e9 bytes) sent."""
    step_us: float
    """Time of a step with a message of a few bytes."""
    link_gb_s: float = float("inf")
    """Rate of a node's link to other nodes, in each direction."""


@dataclass(frozen=True)
class Traffic:
    """What the busiest node of an all-reduce sends, in multiples of the tensor's size, and the number of steps."""

    total: float
    to_other_nodes: float
    steps: int


def predict_seconds(pattern: Pattern, size: int, ranks: int, ranks_per_node: int, machine: Machine) -> float:
    """Return the seconds of an all-reduce of `size` bytes."""
    traffic = count_traffic(pattern, ranks, ranks_per_node)
    busiest = max(traffic.total / machine.node_gb_s, traffic.to_other_nodes / machine.link_gb_s)
    return size * busiest * 1e-9 + traffic.steps * machine.step_us * 1e-6


@cache
def count_traffic(pattern: Pattern, ranks: int, ranks_per_node: int) -> Traffic:
    """Return what the busiest node sends, from the schedules of its ranks."""
    check_nodes(ranks, ranks_per_node)
    nodes = [range(first, first + ranks_per_node) for first in range(0, ranks, ranks_per_node)]
    schedules = [_schedule(pattern, rank, ranks, ranks_per_node) for rank in range(ranks)]
    total = max(sum(_count_sent(schedules[rank], range(0)) for rank in node) for node in nodes)
    outside = max(sum(_count_sent(schedules[rank], node) for rank in node) for node in nodes)
    return Traffic(total, outside, len(schedules[0].steps))


def _count_sent(schedule: Schedule, without: range) -> float:
    sent = [transfer for step in schedule.steps for transfer in step if transfer.action == "send"]
    return sum((each.stop - each.first) / schedule.blocks for each in sent if each.peer not in without)


def _schedule(pattern: Pattern, rank: int, ranks: int, ranks_per_node: int) -> Schedule:
    match pattern:
        case "ring":
            return ring.schedule_all_reduce(rank, ranks)
        case "halving_doubling":
            return halving_doubling.schedule_all_reduce(rank, ranks)
        case "tree":
            return double_tree.schedule_all_reduce(rank, ranks)
        case "hierarchical":
            return hierarchical.schedule_all_reduce(rank, ranks, ranks_per_node)
    raise ValueError(f"pattern: {pattern!r}; allowed: {', '.join(get_args(Pattern))}")
