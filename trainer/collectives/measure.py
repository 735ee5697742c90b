"""Time every method of an all-reduce on the ranks of a group, for the table that `auto` chooses from."""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed

from trainer.collectives.choice import count_ranks_per_node
from trainer.collectives.operations import all_reduce
from trainer.collectives.timing_table import (
    Method,
    TableError,
    TimingTable,
    Topology,
    default_folder,
    describe_nodes,
    read_table,
)
from trainer.host import processor_name
from trainer.json_exchange import broadcast_from_first

# Many of the names used here have no types, and mypy must give the same result where torch is not installed.
dist: Any = torch.distributed
SIZES = tuple(4096 * 8**step for step in range(6))
"""Sizes in bytes, 4 KB to 128 MB: DDP's buckets have 1 MB and 25 MB by default."""
ROUNDS = 7
FLOAT_BYTES = 4
INTERFACES = Path("/sys/class/net")


def detect_topology(hosts: Sequence[str], group: Any) -> Topology:
    """Return the topology of a group on all its ranks, as its first rank sees it; `hosts` has the host of each rank."""
    network = _describe_network() if len(set(hosts)) > 1 else ""
    own = (describe_nodes(hosts), _describe_host(), network, str(torch.__version__))
    return Topology(*broadcast_from_first(own, group))


def load_table(hosts: Sequence[str], group: Any) -> tuple[TimingTable | None, str]:
    """Return the table of a group, or None, on all its ranks, with the reason of the choice in a line for the log.

    Only the first rank reads the file: all ranks must choose the same patterns, even while the file is replaced.
    """
    topology = detect_topology(hosts, group)
    table, reason = (
        None,
        f"no times were measured on {topology.nodes} ranks; `trainer measure-collectives` measures them",
    )
    if dist.get_rank(group) == 0:
        try:
            table = read_table(default_folder(), topology)
        except TableError as error:
            reason = str(error)
    seconds, reason = broadcast_from_first((table and table.seconds, reason), group)
    if seconds is None:
        return None, f"by its rule: {reason}"
    # JSON has turned sizes into text.
    table = TimingTable(
        {method: {int(size): each for size, each in times.items()} for method, times in seconds.items()}
    )
    return table, f"by the times measured on {topology.nodes} ranks: {table.describe()}"


def measure_table(
    hosts: Sequence[str],
    group: Any,
    sizes: Sequence[int] = SIZES,
    rounds: int = ROUNDS,
    on_size: Callable[[int, dict[Method, float]], None] = lambda _, __: None,
) -> TimingTable:
    """Return the median time of each method at each size: that of the slowest rank, the same on all ranks.

    In each round all methods run once, in turn, so that all of them see the same load. `on_size` is called with each
    size and the seconds of the methods as soon as they are measured.
    """
    calls = _list_calls(hosts, group)
    seconds: dict[Method, dict[int, float]] = {method: {} for method in calls}
    for size in sizes:
        tensor = torch.zeros(size // FLOAT_BYTES)
        # The first round connects ranks and touches memory.
        timings = [
            {name: time_call(partial(call, tensor), group) for name, call in calls.items()} for _ in range(rounds + 1)
        ]
        for method in calls:
            seconds[method][size] = statistics.median(timing[method] for timing in timings[1:])
        on_size(size, {method: times[size] for method, times in seconds.items()})
    return TimingTable(seconds)


def _list_calls(hosts: Sequence[str], group: Any) -> dict[Method, Callable[[Any], object]]:
    """Return the function of each method, called as training runs do: their ranks have compared their models."""
    calls: dict[Method, Callable[[Any], object]] = {"backend": partial(dist.all_reduce, group=group)}
    for pattern in ("ring", "halving_doubling", "tree"):
        calls[pattern] = partial(all_reduce, group=group, pattern=pattern, is_checked=False)
    try:
        ranks_per_node = count_ranks_per_node(hosts)
    except ValueError:
        return calls
    if 1 < ranks_per_node < len(hosts):
        calls["hierarchical"] = partial(
            all_reduce, group=group, pattern="hierarchical", ranks_per_node=ranks_per_node, is_checked=False
        )
    return calls


def time_call(call: Callable[[], object], group: Any = None) -> float:
    """Return the seconds of a call on the slowest rank of a group, whose ranks begin together."""
    dist.barrier(group=group)
    start = time.perf_counter()
    call()
    seconds = torch.tensor(time.perf_counter() - start, dtype=torch.float64)
    dist.all_reduce(seconds, op=dist.ReduceOp.MAX, group=group)
    return float(seconds)


def _describe_host() -> str:
    """Return architecture, processor and number of cores."""
    return f"{platform.machine()} {processor_name()} x {os.cpu_count()}"


def _describe_network() -> str:
    """Return the interface that gloo was told to use, or else all that are hardware, with their rates in Mbit/s."""
    chosen = os.environ.get("GLOO_SOCKET_IFNAME")
    folders = [INTERFACES / chosen] if chosen else sorted(each.parent for each in INTERFACES.glob("*/device"))
    return " ".join(f"{folder.name}:{_read_rate(folder)}" for folder in folders)


def _read_rate(interface: Path) -> str:
    """Return the rate; empty if the interface has none, as virtual ones."""
    try:
        return (interface / "speed").read_text().strip()
    except OSError:
        return ""
