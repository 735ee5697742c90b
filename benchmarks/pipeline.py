"""Measure for how long ranks of a pipeline are idle, and compare it with the formula of each schedule; needs torch.

    python -m benchmarks.pipeline [--ranks 2] [--micro-batches 8] [--rounds 5] [--json FILE] [key.sub=value ...]

The ranks are gloo processes of this machine, with a thread each: use at most as many as there are idle cores. All
schedules train the same model in the same processes and run a step each in every round, in turns, so that other load
affects all alike. Idle is the time of a step in which a rank runs no pass: it waits, or sends and receives. The formula
gets the mean times of the passes that were measured in the same step; it takes all passes of a kind as equally long.
The plan is what a rank would be idle if each pass took what it took, and messages nothing: it exceeds the formula as
far as passes differ, and what the measured idle time exceeds it by are messages and everything around the passes. All
three are shown for the median round. The last column of a schedule that torch has too is the time of a step relative to
torch's, the median of all rounds with its middle half.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from statistics import mean, median, quantiles
from typing import Any

import torch
import torch.distributed
import torch.multiprocessing

from benchmarks.figures import Figure, report
from trainer.config.layout import resolve_layout
from trainer.config.load import load
from trainer.engines.pipeline.actions import Action, PipelineShape
from trainer.engines.pipeline.plan import SCHEDULES, make_plan
from trainer.engines.pipeline.rehearsal import time_actions
from trainer.models.init import fill
from trainer.models.registry import build_network
from trainer.objective import CrossEntropy
from trainer.parallel.apply import parallelize
from trainer.parallel.engine import Recipe
from trainer.parallel.mesh import Mesh

# Many of the names used here have no types, and mypy must give the same result where torch is not installed.
dist: Any = torch.distributed
start_processes: Any = torch.multiprocessing.spawn

# Equal stages: a small vocabulary, and as many layers for each of 2 x ranks stages.
MODEL = ("model.dim=512", "model.heads=8", "model.kv_heads=8", "model.ffn=1536", "model.seq_len=128",
         "model.vocab_size=64", "run.device=cpu")  # fmt: skip
LAYERS_PER_RANK = 4
VIRTUAL_STAGES = 2
_WARMUP_ROUNDS = 2
TORCH_SCHEDULES = ("gpipe", "1f1b", "interleaved")


def main() -> int:
    """Measure all schedules and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--micro-batches", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    parser.add_argument("overrides", nargs="*")
    given = parser.parse_args()
    if given.ranks < 2 or given.micro_batches % given.ranks:  # noqa: PLR2004 - a pipeline has at least two ranks
        parser.error(f"--micro-batches: {given.micro_batches} must be a multiple of --ranks {given.ranks}, at least 2")
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder, "results.json")
        start_processes(measure_on_rank, (given, str(Path(folder, "store")), str(results)), nprocs=given.ranks)
        rounds = json.loads(results.read_text())
    figures = list_figures(rounds, given.ranks, given.micro_batches)
    print(report(figures))
    if given.json:
        given.json.write_text(json.dumps([asdict(figure) for figure in figures]))
    return 0


def measure_on_rank(rank: int, given: argparse.Namespace, store: str, results: str) -> None:
    """Join the other ranks and measure all schedules; rank 0 writes what all ranks have measured."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(store, given.ranks), rank=rank, world_size=given.ranks)
    names = [*((schedule, "muster") for schedule in SCHEDULES), *((name, "torch") for name in TORCH_SCHEDULES)]
    runs = {f"{schedule} {engine}": Run(schedule, engine, given, rank) for schedule, engine in names}
    rounds = []
    for number in range(_WARMUP_ROUNDS + given.rounds):
        order = list(runs) if number % 2 else list(runs)[::-1]
        began = time.perf_counter()
        rounds.append({name: runs[name].measure() for name in order})
        if rank == 0:
            took = f"{time.perf_counter() - began:.1f} s"
            print(f"  round {number + 1} of {_WARMUP_ROUNDS + given.rounds}: {took}", file=sys.stderr, flush=True)
    if rank == 0:
        Path(results).write_text(json.dumps(rounds[_WARMUP_ROUNDS:]))
    dist.destroy_process_group()


Pass = tuple[str, int, int, float]
"""A pass: its kind, stage, micro-batch and seconds."""


class Run:
    """A model under a schedule, and the times of its passes."""

    def __init__(self, schedule: str, engine: str, given: argparse.Namespace, rank: int) -> None:
        settings = [*MODEL, f"model.layers={LAYERS_PER_RANK * given.ranks}", f"batch.size={given.micro_batches}"]
        settings += ["parallel.strategy=single", f"parallel.pipeline={given.ranks}", f"parallel.engine={engine}"]
        settings += [f"parallel.schedule={schedule}"]
        settings += [f"parallel.virtual_stages={VIRTUAL_STAGES}"] if schedule == "interleaved" else []
        config = load("tiny-llama", [*settings, *given.overrides])
        recipe = Recipe(config.parallel, config.precision)
        layout = resolve_layout(config.parallel, given.ranks, given.ranks)
        mesh = Mesh(layout, rank, torch.device("cpu"), uses_fully_shard=False)
        self._engine = parallelize(partial(build_network, config), recipe, mesh, fill=partial(fill, seed=1))
        # torch's engine has no such attribute, and measures nothing.
        vars(self._engine)["around_action"] = self._time
        self._loss = CrossEntropy(config.loss.chunk_tokens, keeps_gradients=schedule != "gpipe")
        self._passes: list[Pass] = []
        model: Any = config.model
        tokens = torch.randint(model.vocab_size, (config.batch.size, model.seq_len + 1))
        self._batch = {"inputs": tokens[:, :-1].contiguous(), "targets": tokens[:, 1:].contiguous()}

    def measure(self) -> list[dict[str, Any]]:
        """Run a step and return, for each rank, its time and the times of its passes."""
        for _, weight in self._engine.named_parameters():
            weight.grad = None
        self._passes.clear()
        dist.barrier()
        began = time.perf_counter()
        # It ends with a sum over all ranks, so all of them end together.
        self._engine.forward_backward(self._batch, self._loss, 1, None)
        own = {"step": time.perf_counter() - began, "passes": list(self._passes)}
        everything: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(everything, own)
        return everything

    @contextmanager
    def _time(self, action: Action) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self._passes.append((action.kind, action.stage, action.micro_batch, time.perf_counter() - began))


def list_figures(rounds: list[dict[str, Any]], ranks: int, micro_batches: int) -> list[Figure]:
    """Return the idle time of each schedule beside that of its formula."""
    figures = []
    for schedule in SCHEDULES:
        stages = VIRTUAL_STAGES if schedule == "interleaved" else 1
        shape = PipelineShape(ranks, micro_batches, stages)
        compared = sorted(compare_idle(each[f"{schedule} muster"], schedule, shape) for each in rounds)
        idle, formula, plan, step = compared[len(compared) // 2]
        reference = f"formula {formula * 1000:.1f} ms, {formula / step:.1%} of the step; plan {plan * 1000:.1f} ms"
        figures.append(Figure(f"{schedule}: idle, {idle / step:.1%} of the step", idle * 1000, "ms", reference))
        times = [average_passes(each[f"{schedule} muster"]) for each in rounds]
        passes = ", ".join(f"{kind} {median(each[kind] for each in times) * 1000:.1f} ms" for kind in times[0])
        steps = [find_step(each[f"{schedule} muster"]) for each in rounds]
        figures.append(Figure(f"{schedule}: step", median(steps) * 1000, "ms", passes))
        if schedule in TORCH_SCHEDULES:
            ratios = [find_step(each[f"{schedule} muster"]) / find_step(each[f"{schedule} torch"]) for each in rounds]
            low, _, high = quantiles(ratios, n=4)
            spread = f"middle half {low:.3f} to {high:.3f}, {len(ratios)} rounds"
            figures.append(Figure(f"{schedule}: time of a step", median(ratios), "x torch", spread))
    return figures


def compare_idle(by_rank: list[dict[str, Any]], schedule: str, shape: PipelineShape) -> tuple[float, ...]:
    """Return the mean idle time of the ranks, that of the formula, that of the plan, and the time of the step."""
    step = find_step(by_rank)
    work = [sum(seconds for *_, seconds in rank["passes"]) for rank in by_rank]
    took = {(kind, stage, number): seconds for rank in by_rank for kind, stage, number, seconds in rank["passes"]}

    def find_seconds(action: Action) -> float:
        return took[action.kind, action.stage, action.micro_batch]

    timeline = time_actions(make_plan(schedule, shape), shape, find_seconds)
    end = max(start + find_seconds(action) for actions in timeline for action, start in actions)
    formula = SCHEDULES[schedule].predict_bubble(shape, average_passes(by_rank))
    return step - mean(work), formula, end - mean(work), step


def average_passes(by_rank: list[dict[str, Any]]) -> dict[Any, float]:
    """Return the mean time of each kind of pass over all ranks."""
    times: dict[Any, list[float]] = defaultdict(list)
    for rank in by_rank:
        for kind, _, _, seconds in rank["passes"]:
            times[kind].append(seconds)
    return {kind: mean(seconds) for kind, seconds in times.items()}


def find_step(by_rank: list[dict[str, Any]]) -> float:
    """Return the time of a step, on the slowest rank."""
    return max(float(rank["step"]) for rank in by_rank)


if __name__ == "__main__":
    sys.exit(main())
