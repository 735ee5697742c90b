"""The ranks of a node of benchmarks.collectives, which starts it; needs torch."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from time import process_time
from typing import Any

import torch
import torch.distributed
import torch.multiprocessing

from benchmarks.collectives_figures import (
    CHECKED,
    PATTERNS,
    RANKS,
    RANKS_PER_NODE,
    RING_SHARE,
    Pair,
    Times,
    count_rounds,
    format_times,
    list_figures,
)
from benchmarks.figures import report
from benchmarks.node_link import limit_link, wait_for_first_node
from trainer.collectives.measure import time_call
from trainer.collectives.operations import all_reduce

# Many of the names used here have no types, and mypy must give the same result where torch is not installed.
dist: Any = torch.distributed
start_processes: Any = torch.multiprocessing.spawn
PORT = 29_610
MEBIBYTE = 1 << 20
FLOAT_BYTES = 4


def main() -> None:
    """Run the ranks of this node."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--mbit", type=int)
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--patterns", nargs="+", choices=PATTERNS)
    parser.add_argument("--mebibytes", type=float, nargs="+")
    start_processes(run_rank, (parser.parse_args(),), nprocs=RANKS // int(os.environ["NODES"]))


def run_rank(local_rank: int, options: argparse.Namespace) -> None:
    """Join the other ranks and measure all sizes; rank 0 prints each when it ends, and fails at a bound."""
    torch.set_num_threads(1)
    rank = int(os.environ["NODE"]) * RANKS // int(os.environ["NODES"]) + local_rank
    wait_for_first_node()
    address = f"tcp://{os.environ['MASTER_ADDR']}:{PORT}"
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=RANKS)
    if options.mbit and local_rank == 0:
        limit_link(options.mbit)
    dist.barrier()
    if rank == 0:
        where = f"two nodes, link of {options.mbit} Mbit/s" if options.mbit else "one machine"
        print(f"{where}:", flush=True)
    times_by_size = {}
    for size in (int(mebibytes * MEBIBYTE) for mebibytes in options.mebibytes):
        times_by_size[size] = measure_times(size, count_rounds(size, options.rounds, options.mbit), options.patterns)
        if rank == 0:
            print("", format_times(size, times_by_size[size], options.mbit), sep="\n", flush=True)
    dist.barrier()
    if rank == 0:
        figures = list_figures(times_by_size, options.mbit)
        print("", report(figures), "", sep="\n", flush=True)
        sys.exit(any(figure.verdict == "FAIL" for figure in figures))


def measure_times(size: int, rounds: int, patterns: Sequence[str]) -> Times:
    """Return the times of each pattern beside torch's, for one message size."""
    tensor = torch.zeros(size // FLOAT_BYTES)
    sent = torch.zeros(int(len(tensor) * RING_SHARE))
    received, word = torch.empty_like(sent), torch.zeros(1)
    rank = dist.get_rank()
    theirs = partial(dist.all_reduce, tensor)
    plain: list[float] = []
    step: list[float] = []
    pairs: dict[str, list[Pair]] = {name: [] for name in patterns}
    # The first round connects ranks and touches memory.
    for number in range(rounds + 1):
        plain.append(time_call(lambda: _exchange(sent, received, rank ^ 1, rank ^ 1)))
        step.append(time_call(lambda: _exchange(word, torch.empty(1), (rank + 1) % RANKS, (rank - 1) % RANKS)))
        for name in patterns:
            pairs[name].append(_measure_pair(_make_call(name, tensor), theirs, is_ours_first=number % 2 == 0))
    return Times(plain[1:], step[1:], {name: each[1:] for name, each in pairs.items()})


def _measure_pair(ours: Callable[[], object], theirs: Callable[[], object], *, is_ours_first: bool) -> Pair:
    if is_ours_first:
        ours_s, theirs_s = _measure(ours), _measure(theirs)
    else:
        theirs_s, ours_s = _measure(theirs), _measure(ours)
    return Pair(ours_s[0], theirs_s[0], ours_s[1], theirs_s[1])


def _measure(call: Callable[[], object]) -> tuple[float, float]:
    """Return the seconds of a call on the slowest rank, and the seconds of processor time of all ranks."""
    began = process_time()
    seconds = time_call(call)
    processor = torch.tensor(process_time() - began, dtype=torch.float64)
    dist.all_reduce(processor)
    return seconds, float(processor)


def _make_call(name: str, tensor: Any) -> Callable[[], object]:
    """Return the call of a pattern: as in training, where ranks have compared their models, or checked."""
    is_checked = name == CHECKED
    pattern: Any = name.split(",", maxsplit=1)[0]
    nodes: dict[str, Any] = {"ranks_per_node": RANKS_PER_NODE} if pattern == "hierarchical" else {}
    return partial(all_reduce, tensor, pattern=pattern, is_checked=is_checked, **nodes)


def _exchange(sent: Any, received: Any, right: int, left: int) -> None:
    for work in (dist.irecv(received, left), dist.isend(sent, right)):
        work.wait()


if __name__ == "__main__":
    main()
