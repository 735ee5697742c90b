"""Compare muster's engines with torch's, step by step, on gloo ranks of this machine or on one GPU; needs torch.

    python -m benchmarks.engines [--strategy ddp,fsdp] [--ranks 4] [--rounds 15] [--device cpu|cuda] [--json FILE]
                                 [key.sub=value ...]

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

from benchmarks.figures import Figure, report
from benchmarks.overhead import synchronized_clock
from benchmarks.peak_memory import measure_memory
from trainer.config.layout import resolve_layout
from trainer.config.load import load
from trainer.models.init import fill
from trainer.models.registry import build_network
from trainer.objective import CrossEntropy
from trainer.parallel.apply import parallelize
from trainer.parallel.engine import Recipe
from trainer.parallel.mesh import Mesh
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
        common = [*(GPU_MODEL if self.device == "cuda" else CPU_MODEL), *self.overrides]
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
    parser.add_argument("--json", type=Path)
    parser.add_argument("overrides", nargs="*")
    given = parser.parse_args()
    ranks = given.ranks or (1 if given.device == "cuda" else 4)
    if given.device == "cuda" and ranks > 1:
        parser.error(f"--ranks: {ranks}, but all ranks would share one GPU; use 1")
    strategies = given.strategy.split(",")
    if unknown := sorted(set(strategies) - set(REFERENCES)):
        parser.error(f"--strategy: {', '.join(unknown)}, but it must be any of {', '.join(REFERENCES)}")
    figures = []
    for strategy in strategies:
        figures += measure_strategy(Options(strategy, ranks, given.rounds, given.device, tuple(given.overrides)))
    print(report(figures))
    if given.json:
        given.json.write_text(json.dumps([asdict(figure) for figure in figures]))
    return int(any(figure.verdict == "FAIL" for figure in figures))


def measure_strategy(options: Options) -> list[Figure]:
    """Compare both engines on processes of their own."""
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder, "results.json")
        start_processes(measure_on_rank, (options, str(Path(folder, "store")), str(results)), nprocs=options.ranks)
        measured = json.loads(results.read_text())
    return list_figures(options, measured["seconds"], measured["bytes"])


def measure_on_rank(rank: int, options: Options, store: str, results: str) -> None:
    """Join the other ranks and measure both engines; rank 0 writes the results."""
    torch.set_num_threads(1)
    device = torch.empty(0, device=options.device).device  # adds the index of the device
    file = dist.FileStore(store, options.ranks)
    # Times are compared in host memory.
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, store=file, rank=rank, world_size=options.ranks)
    makers = {name: partial(make_run, settings, rank, device) for name, settings in options.settings.items()}
    # The first run of each engine fills caches, and connects ranks.
    for make in makers.values():
        build_and_run(make)
    peaks = {name: measure_peak(make, device) for name, make in makers.items()}
    runs = {name: make() for name, make in makers.items()}
    rounds = [measure_round(runs, number, device) for number in range(_WARMUP_ROUNDS + options.rounds)]
    if rank == 0:
        Path(results).write_text(json.dumps({"seconds": rounds[_WARMUP_ROUNDS:], "bytes": peaks}))
    dist.destroy_process_group()


def make_run(settings: list[str], rank: int, device: torch.device) -> Callable[[], object]:
    """Build an engine and return the function that runs one step on random tokens."""
    config = load("llama-1b" if device.type == "cuda" else "tiny-llama", settings)
    recipe = Recipe(config.parallel, config.precision, config.compile, config.fp8)
    layout = resolve_layout(config.parallel, dist.get_world_size(), dist.get_world_size())
    mesh = Mesh(layout, rank, device, uses_fully_shard=recipe.uses_fully_shard(layout))
    weights = partial(fill, seed=1, device=device)
    engine = parallelize(partial(build_network, config), recipe, mesh, fill=weights)
    step = Step(engine, config, CrossEntropy(config.loss.chunk_tokens))
    model: Any = config.model
    size = config.batch.size // layout.dp_size
    tokens = torch.randint(model.vocab_size, (size, model.seq_len + 1), device=device)
    batch = {"inputs": tokens[:, :-1].contiguous(), "targets": tokens[:, 1:].contiguous()}
    return lambda: step.run(batch, size)


def measure_peak(make: Callable[[], Callable[[], object]], device: torch.device) -> dict[str, int]:
    """Return the peak memory of building an engine and of two steps, on the rank that needs most."""
    own = asdict(measure_memory(partial(build_and_run, make), device))
    most = torch.tensor(list(own.values()))
    dist.all_reduce(most, op=dist.ReduceOp.MAX)
    return dict(zip(own, most.tolist(), strict=True))


def measure_round(runs: dict[str, Callable[[], object]], number: int, device: torch.device) -> dict[str, float]:
    """Return the seconds of a step with each engine, on the slowest rank."""
    names = list(runs) if number % 2 else list(runs)[::-1]
    seconds = {}
    for name in names:
        dist.barrier()
        began = synchronized_clock(device)
        runs[name]()
        took = torch.tensor(synchronized_clock(device) - began, dtype=torch.float64)
        dist.all_reduce(took, op=dist.ReduceOp.MAX)
        seconds[name] = float(took)
    return seconds


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
