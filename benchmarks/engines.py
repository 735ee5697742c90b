"""Compare muster's engines with torch's, step by step, on gloo ranks of this machine or on one GPU; needs torch.

    python -m benchmarks.engines [--strategy ddp,fsdp] [--ranks 4] [--rounds 15] [--device cpu|cuda] [--json FILE]
                                 [--overlap-mbit N] [key.sub=value ...]

`python -m benchmarks.engines_on_nodes`, with the same options, divides the ranks among two nodes. With
`--overlap-mbit`, it measures how much communication is hidden instead (`benchmarks.overlap`).

Under ddp, the reference is torch's DDP. With one rank, as on a GPU, it is the plain model, and the figure is what hooks
and buckets cost without communication. Memory then has no bound: like DDP, the engine keeps its buckets during the
forward pass, while the plain model has no gradients then. Under fsdp and hsdp, the reference is torch's fully_shard, on
any number of ranks.

Both engines train the same model in the same processes. In each round, each of them runs one step, in turns, so that
other load affects both alike; the order alternates. A time is that of the slowest rank. The ratio is that of the two
times of a round: the table has its median, its middle half, and its smallest and largest value. Memory is the peak
from building the model to the end of the second step, measured for each engine alone, on the rank that needs most: of
all tensors, which has the bound, and of all that is allocated, including gloo's buffers (`peak_memory`).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import torch
import torch.distributed
import torch.multiprocessing

from benchmarks.engine_runs import make_engine
from benchmarks.figures import Figure, report
from benchmarks.node_link import wait_for_first_node
from benchmarks.overlap import OVERLAP_MODEL, measure_overlap, measure_round
from benchmarks.overlap_figures import list_overlap
from benchmarks.peak_memory import measure_memory
from trainer.objective import CrossEntropy
from trainer.step import Step

# Many of the names used here have no types, and mypy must give the same result where torch is not installed.
dist: Any = torch.distributed
start_processes: Any = torch.multiprocessing.spawn

# 18 million weights in three buckets; a step takes a few tenths of a second on one core.
CPU_MODEL = (
    "model.dim=512", "model.layers=4", "model.heads=8", "model.kv_heads=8", "model.ffn=1536", "model.seq_len=64",
    "model.vocab_size=4096", "batch.size=4", "run.device=cpu",
)  # fmt: skip
GPU_MODEL = ("batch.size=8", "run.device=cuda")
OVERHEAD_PERCENT = 3.0
_WARMUP_ROUNDS = 3
_NODES, _PORT = 2, 29_700


@dataclass(frozen=True)
class Reference:
    """What muster's engine is compared with: its name, and the largest allowed ratios of time and memory."""

    name: str
    time: float | None
    memory: float | None


PLAIN_MODEL = Reference("plain model", None, None)
REFERENCES = {
    "ddp": Reference("torch's DDP", 1 / 0.95, 1.05),
    "fsdp": Reference("torch's fsdp", 1.05, 1.02),
    "hsdp": Reference("torch's hsdp", 1.05, 1.02),
}
_MIB = 2**20


@dataclass(frozen=True)
class Options:
    """What to measure."""

    strategy: str
    ranks: int
    rounds: int
    device: str
    overrides: tuple[str, ...]
    overlap_mbit: int = 0
    """Rate of the link between the nodes if overlap is measured, else 0."""

    @property
    def is_alone(self) -> bool:
        """Whether the reference is the plain model: the trainer does not use DDP on one rank."""
        return self.ranks == 1 and self.strategy == "ddp"

    @property
    def reference(self) -> Reference:
        return PLAIN_MODEL if self.is_alone else REFERENCES[self.strategy]

    @property
    def settings(self) -> dict[str, list[str]]:
        """The settings of each engine; the reference is the first."""
        model = GPU_MODEL if self.device == "cuda" else CPU_MODEL
        common = [*model, *(OVERLAP_MODEL if self.overlap_mbit else ()), *self.overrides]
        return {
            "torch": [*common, f"parallel.strategy={'single' if self.is_alone else self.strategy}"],
            "muster": [*common, f"parallel.strategy={self.strategy}", "parallel.engine=muster"],
        }


def main() -> int:
    """Measure, print the figures and return 1 if one misses its bound."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--strategy", default="ddp,fsdp", help=f"any of {', '.join(REFERENCES)}; default: %(default)s")
    parser.add_argument("--ranks", type=int, default=0, help="default: 4, and 1 on a GPU")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--overlap-mbit", type=int, default=0, help="only on nodes: measure overlap at this rate")
    parser.add_argument("--json", type=Path)
    parser.add_argument("overrides", nargs="*")
    given = parser.parse_args()
    if given.overlap_mbit and "NODE" not in os.environ:
        parser.error("--overlap-mbit: the link of one machine cannot be limited; use benchmarks.engines_on_nodes")
    default = 1 if given.device == "cuda" else 4
    ranks = given.ranks or (_NODES if given.overlap_mbit else default)
    if "NODE" in os.environ and ranks % _NODES:
        parser.error(f"--ranks: {ranks} cannot be divided among {_NODES} nodes; use a multiple")
    if given.overlap_mbit and ranks != _NODES:
        parser.error(f"--ranks: {ranks}, but --overlap-mbit measures {_NODES} nodes of a rank each; leave it out")
    if given.device == "cuda" and ranks > 1:
        parser.error(f"--ranks: {ranks}, but all ranks would share one GPU; use 1")
    strategies = given.strategy.split(",")
    if unknown := sorted(set(strategies) - set(REFERENCES)):
        parser.error(f"--strategy: {', '.join(unknown)}, but it must be any of {', '.join(REFERENCES)}")
    figures, overrides = [], tuple(given.overrides)
    for number, strategy in enumerate(strategies):
        options = Options(strategy, ranks, given.rounds, given.device, overrides, given.overlap_mbit)
        measured = measure_strategy(options, _PORT + number)
        figures += measured
        if measured:
            print(report(measured), flush=True)
    if given.json:
        given.json.write_text(json.dumps([asdict(figure) for figure in figures]))
    return int(any(figure.verdict == "FAIL" for figure in figures))


def measure_strategy(options: Options, port: int) -> list[Figure]:
    """Compare both engines on processes of their own; on the second of two nodes, return nothing."""
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder, "results.json")
        address, first, count = f"file://{folder}/store", 0, options.ranks
        if "NODE" in os.environ:
            wait_for_first_node()
            address, count = f"tcp://{os.environ['MASTER_ADDR']}:{port}", options.ranks // _NODES
            first = int(os.environ["NODE"]) * count
        start_processes(measure_on_rank, (first, options, address, str(results)), nprocs=count)
        if first:
            return []
        measured = json.loads(results.read_text())
    if options.overlap_mbit:
        return list_overlap(options.strategy, measured)
    return list_figures(options, measured["seconds"], measured["bytes"])


def measure_on_rank(local_rank: int, first: int, options: Options, address: str, results: str) -> None:
    """Join the other ranks and measure both engines; rank 0 writes the results."""
    rank = first + local_rank
    torch.set_num_threads(1)
    device = torch.empty(0, device=options.device).device  # adds the index of the device
    # Times are compared in host memory.
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, init_method=address, rank=rank, world_size=options.ranks)
    if options.overlap_mbit:
        measured: object = measure_overlap(options.settings, rank, options.rounds, options.overlap_mbit)
    else:
        measured = measure_engines(options, rank, device)
    if rank == 0:
        Path(results).write_text(json.dumps(measured))
    dist.barrier()
    dist.destroy_process_group()


def measure_engines(options: Options, rank: int, device: torch.device) -> dict[str, object]:
    """Return the seconds of both engines in each round, and their peaks of memory."""
    makers = {name: partial(make_run, settings, rank, device) for name, settings in options.settings.items()}
    # The first run of each engine fills caches, and connects ranks.
    for make in makers.values():
        build_and_run(make)
    peaks = {name: measure_peak(make, device) for name, make in makers.items()}
    runs = {name: make() for name, make in makers.items()}
    rounds = [measure_round(runs, number, device) for number in range(_WARMUP_ROUNDS + options.rounds)]
    return {"seconds": rounds[_WARMUP_ROUNDS:], "bytes": peaks}


def make_run(settings: list[str], rank: int, device: torch.device) -> Callable[[], object]:
    """Build an engine and return the function that runs one step on random tokens."""
    config, engine, batch = make_engine(settings, rank, dist.get_world_size(), device)
    step = Step(engine, config, CrossEntropy(config.loss.chunk_tokens))
    return lambda: step.run(batch, len(batch["inputs"]))


def measure_peak(make: Callable[[], Callable[[], object]], device: torch.device) -> dict[str, int]:
    """Return the peak memory of building an engine and of two steps, on the rank that needs most."""
    own = asdict(measure_memory(partial(build_and_run, make), device))
    most = torch.tensor(list(own.values()))
    dist.all_reduce(most, op=dist.ReduceOp.MAX)
    return dict(zip(own, most.tolist(), strict=True))


def build_and_run(make: Callable[[], Callable[[], object]]) -> None:
    """Build an engine and run two steps."""
    run = make()
    run()
    run()


def list_figures(options: Options, rounds: list[dict[str, float]], peaks: dict[str, dict[str, int]]) -> list[Figure]:
    """Return times, their ratio with its spread, and memory."""
    reference, ours = options.reference, f"muster's {options.strategy}"
    times = {name: median(seconds[name] for seconds in rounds) * 1000 for name in rounds[0]}
    ratios = sorted(seconds["muster"] / seconds["torch"] for seconds in rounds)
    low, _, high = quantiles(ratios, n=4)
    spread = f"middle half {low:.3f} to {high:.3f}, all {ratios[0]:.3f} to {ratios[-1]:.3f}, {len(ratios)} rounds"
    ratio = median(ratios)
    unit = f"x {reference.name}"
    figures = [
        Figure(f"{reference.name}: step", times["torch"], "ms"),
        Figure(f"{ours}: step", times["muster"], "ms", f"{reference.name} {times['torch']:.1f} ms"),
        Figure(f"{ours}: time of a step", ratio, unit, spread, reference.time),
    ]
    if options.is_alone:
        figures.append(Figure(f"{ours}: overhead", (ratio - 1) * 100, "%", reference.name, OVERHEAD_PERCENT))
    # gloo holds a copy of what a reduce-scatter sends, and more. On a CPU, torch's fsdp waits for it after freeing
    # a block; ours overlaps it with the next block, so these buffers add to the peak. They are shown without a bound.
    for kind, bound in (("tensors", reference.memory), ("allocated", None)):
        here, there = peaks["muster"][kind], peaks["torch"][kind]
        sizes = f"{here / _MIB:.1f} MiB, {reference.name} {there / _MIB:.1f} MiB"
        figures.append(Figure(f"{ours}: peak memory, {kind}", here / there, unit, sizes, bound))
    return figures


if __name__ == "__main__":
    sys.exit(main())
