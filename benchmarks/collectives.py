"""Time all-reduce on point-to-point messages against torch's own, on gloo ranks of this machine; needs torch.

    python -m benchmarks.collectives [--ranks 4] [--ranks-per-node 2] [--rounds 21] [--mebibytes 1 16 64]

In each round, torch's all-reduce and every pattern run once, in turn, so that all of them see the same load of the
machine. A time is that of the slowest rank, and the table has medians over rounds. The ratio is torch's time divided by
the pattern's, of the same round: 2.00 is twice as fast as torch. There is no bound. Ranks share the processors and
memory of one machine, so the ratios say how much the code costs, not which pattern suits a network.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed
import torch.multiprocessing

from trainer.bandwidth import format_size
from trainer.collectives.operations import all_reduce
from trainer.table import table

# Many of the names used here have no types, and mypy must give the same result where torch is not installed.
dist: Any = torch.distributed
start_processes: Any = torch.multiprocessing.spawn
TORCH = "torch"
MEBIBYTE = 1 << 20
FLOAT_BYTES = 4


@dataclass(frozen=True)
class Options:
    """What to measure."""

    ranks: int
    ranks_per_node: int
    rounds: int
    sizes: tuple[int, ...]
    """Message sizes in bytes."""


Rounds = Sequence[dict[str, float]]
"""The seconds of each pattern, by round."""


def main() -> None:
    """Start the ranks; rank 0 prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--ranks-per-node", type=int, default=2, help="for the hierarchical pattern")
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--mebibytes", type=float, nargs="+", default=[1 / 256, 0.0625, 1, 16, 64], help="sizes")
    given = parser.parse_args()
    sizes = tuple(round(size * MEBIBYTE) for size in given.mebibytes)
    options = Options(given.ranks, given.ranks_per_node, given.rounds, sizes)
    with tempfile.TemporaryDirectory() as folder:
        start_processes(measure_on_rank, (options, str(Path(folder, "store"))), nprocs=options.ranks)


def measure_on_rank(rank: int, options: Options, store: str) -> None:
    """Join the other ranks, measure all sizes and print the table on rank 0."""
    torch.set_num_threads(1)
    file = dist.FileStore(store, options.ranks)
    dist.init_process_group("gloo", store=file, rank=rank, world_size=options.ranks)
    rounds_by_size = {size: measure_rounds(size, options) for size in options.sizes}
    if rank == 0:
        print(format_report(rounds_by_size))
    dist.destroy_process_group()


def measure_rounds(size: int, options: Options) -> Rounds:
    """Return the seconds of each pattern in every round, for one message size."""
    calls: dict[str, Callable[[Any], object]] = {
        TORCH: dist.all_reduce,
        "ring": all_reduce,
        "halving_doubling": lambda tensor: all_reduce(tensor, pattern="halving_doubling"),
        "tree": lambda tensor: all_reduce(tensor, pattern="tree"),
        "hierarchical": lambda tensor: all_reduce(
            tensor, pattern="hierarchical", ranks_per_node=options.ranks_per_node
        ),
    }
    tensor = torch.zeros(size // FLOAT_BYTES)
    # The first round connects ranks and touches memory.
    return [{name: _time_call(call, tensor) for name, call in calls.items()} for _ in range(options.rounds + 1)][1:]


def _time_call(call: Callable[[Any], object], tensor: Any) -> float:
    dist.barrier()
    start = time.perf_counter()
    call(tensor)
    seconds = torch.tensor(time.perf_counter() - start, dtype=torch.float64)
    dist.all_reduce(seconds, op=dist.ReduceOp.MAX)
    return float(seconds)


def format_report(rounds_by_size: dict[int, Rounds]) -> str:
    """Return a table of the median times, and of the ratios to torch with their smallest and largest value."""
    rows = []
    for size, rounds in rounds_by_size.items():
        for name in rounds[0]:
            ratios = sorted(seconds[TORCH] / seconds[name] for seconds in rounds)
            spread = "" if name == TORCH else f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
            milliseconds = statistics.median(seconds[name] for seconds in rounds) * 1e3
            rows.append((format_size(size), name, milliseconds, spread))
    return table(("size", "pattern", "time ms", "torch's time / ours"), rows)


if __name__ == "__main__":
    main()
