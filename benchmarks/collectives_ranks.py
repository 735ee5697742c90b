"""The ranks of a node of benchmarks.collectives, which starts it; needs torch."""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from collections.abc import Callable, Sequence
from typing import Any, get_args

import torch
import torch.distributed
import torch.multiprocessing

from benchmarks.figures import Figure, report
from benchmarks.node_link import limit_link, wait_for_first_node
from simulator.collectives.patterns import Machine, Pattern, predict_seconds
from trainer.bandwidth import format_size
from trainer.collectives.measure import time_call
from trainer.collectives.operations import all_reduce
from trainer.table import table

# Many of the names used here have no types, and mypy must give the same result where torch is not installed.
dist: Any = torch.distributed
start_processes: Any = torch.multiprocessing.spawn
RANKS, RANKS_PER_NODE = 4, 2
PORT = 29_610
TORCH, PLAIN, STEP = "torch", "plain", "step"
HIERARCHICAL, CHECKED = "hierarchical", "hierarchical, checked"
MEBIBYTE = 1 << 20
FLOAT_BYTES = 4
RING_SHARE = 2 * (RANKS - 1) / RANKS
"""What a rank sends in a ring, in multiples of the tensor."""
ONE_MACHINE_MOST, SLOW_LINK_MOST = 1.11, 0.83
Rounds = Sequence[dict[str, float]]
"""The seconds of each call, by round."""


def main() -> None:
    """Run the ranks of this node."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--mbit", type=int)
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--mebibytes", type=float, nargs="+")
    start_processes(run_rank, (parser.parse_args(),), nprocs=RANKS // int(os.environ["NODES"]))


def run_rank(local_rank: int, options: argparse.Namespace) -> None:
    """Join the other ranks, measure all sizes; rank 0 prints the table and fails at a bound."""
    torch.set_num_threads(1)
    rank = int(os.environ["NODE"]) * RANKS // int(os.environ["NODES"]) + local_rank
    wait_for_first_node()
    address = f"tcp://{os.environ['MASTER_ADDR']}:{PORT}"
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=RANKS)
    if options.mbit and local_rank == 0:
        limit_link(options.mbit)
    dist.barrier()
    sizes = [int(mebibytes * MEBIBYTE) for mebibytes in options.mebibytes]
    rounds_by_size = {}
    for size in sizes:
        rounds_by_size[size] = measure_rounds(size, options.rounds)
        if rank == 0:
            print(f"  {format_size(size)} done", file=sys.stderr, flush=True)
    dist.barrier()
    if rank == 0:
        figures = list_figures(rounds_by_size, options.mbit)
        where = f"two nodes, link of {options.mbit} Mbit/s" if options.mbit else "one machine"
        print(f"{where}:\n", format_report(rounds_by_size, options.mbit), "", report(figures), "", sep="\n", flush=True)
        sys.exit(any(figure.verdict == "FAIL" for figure in figures))


def measure_rounds(size: int, rounds: int) -> Rounds:
    """Return the seconds of each call in every round, for one message size."""
    tensor = torch.zeros(size // FLOAT_BYTES)
    sent = torch.zeros(int(len(tensor) * RING_SHARE))
    received, word = torch.empty_like(sent), torch.zeros(1)
    rank = dist.get_rank()
    calls: dict[str, Callable[[], object]] = {
        PLAIN: lambda: _exchange(sent, received, rank ^ 1, rank ^ 1),
        STEP: lambda: _exchange(word, torch.empty(1), (rank + 1) % RANKS, (rank - 1) % RANKS),
        TORCH: lambda: dist.all_reduce(tensor),
        "ring": lambda: all_reduce(tensor, is_checked=False),
        "halving_doubling": lambda: all_reduce(tensor, pattern="halving_doubling", is_checked=False),
        "tree": lambda: all_reduce(tensor, pattern="tree", is_checked=False),
        HIERARCHICAL: lambda: all_reduce(
            tensor, pattern="hierarchical", ranks_per_node=RANKS_PER_NODE, is_checked=False
        ),
        CHECKED: lambda: all_reduce(tensor, pattern="hierarchical", ranks_per_node=RANKS_PER_NODE),
    }
    # The first round connects ranks and touches memory.
    return [{name: time_call(call) for name, call in calls.items()} for _ in range(rounds + 1)][1:]


def _exchange(sent: Any, received: Any, right: int, left: int) -> None:
    for work in (dist.irecv(received, left), dist.isend(sent, right)):
        work.wait()


def format_report(rounds_by_size: dict[int, Rounds], mbit: int | None) -> str:
    """Return a table of the median times, predicted times, and ratios to torch with their smallest and largest."""
    rows = []
    for size, rounds in rounds_by_size.items():
        machine = describe_machine(size, rounds, mbit)
        for name in (name for name in rounds[0] if name != STEP):
            milliseconds = statistics.median(seconds[name] for seconds in rounds) * 1e3
            ratios = sorted(seconds[TORCH] / seconds[name] for seconds in rounds)
            spread = f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
            pattern: Pattern = name if name in get_args(Pattern) else "ring"  # type: ignore[assignment]
            predicted = predict_seconds(pattern, size, RANKS, RANKS_PER_NODE, machine) * 1e3
            predicted_text = "" if name in (PLAIN, CHECKED) else f"{predicted:.2f}"
            rows.append((format_size(size), name, milliseconds, predicted_text, "" if name == TORCH else spread))
    return table(("size", "pattern", "time ms", "predicted ms", "torch's time / ours"), rows)


def describe_machine(size: int, rounds: Rounds, mbit: int | None) -> Machine:
    """Return the rates of a node that plain messages of the same run have.

    Two ranks of a node share the processors with the other node, or with the two other ranks, in the same way.
    """
    plain, step = (statistics.median(seconds[name] for seconds in rounds) for name in (PLAIN, STEP))
    node_gb_s = RANKS_PER_NODE * RING_SHARE * size / plain / 1e9
    return Machine(node_gb_s, step * 1e6, mbit / 8e3 if mbit else float("inf"))


def list_figures(rounds_by_size: dict[int, Rounds], mbit: int | None) -> list[Figure]:
    """Return the figures that have bounds."""
    figures = []
    for size, rounds in rounds_by_size.items():
        milliseconds = statistics.median(seconds[TORCH] for seconds in rounds) * 1e3
        times = {
            name: statistics.median(seconds[name] / seconds[TORCH] for seconds in rounds)
            for name in ((HIERARCHICAL,) if mbit else ("ring", HIERARCHICAL))
        }
        best = min(times, key=lambda name: times[name])
        bound = SLOW_LINK_MOST if mbit and size == max(rounds_by_size) else None if mbit else ONE_MACHINE_MOST
        name = f"{format_size(size)}: {best}, times torch's time"
        figures.append(Figure(name, times[best], "x", f"torch {milliseconds:.1f} ms", bound))
    return figures


if __name__ == "__main__":
    main()
