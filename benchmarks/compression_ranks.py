"""The ranks of a node of benchmarks.compression, which starts it; needs torch."""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed
import torch.multiprocessing

from benchmarks.figures import Figure, report
from benchmarks.node_link import free_link, limit_link, wait_for_first_node
from trainer.api import Trainer
from trainer.config.load import load
from trainer.data.loader import Loader
from trainer.data.registry import open_sources
from trainer.table import table
from trainer.world import World

# Many of the names used here have no types, and mypy must give the same result where torch is not installed.
dist: Any = torch.distributed
start_processes: Any = torch.multiprocessing.spawn
NODES, RANKS_PER_NODE = 2, 2
RANKS = NODES * RANKS_PER_NODE
PORT = 29_600
WHOLE = "none"
TIMED_METHODS = (WHOLE, "topk", "powersgd", "int8")
INNER_STEPS = 50
EVALUATED_BATCHES = 12
LOCAL_METHODS = {
    "diloco": [],
    "diloco_0.6": ["communication.outer_momentum=0.6"],
    "local_sgd": ["communication.outer_lr=1", "communication.outer_momentum=0"],
}
"""Methods with local steps; the default outer momentum needs more outer steps than a short run has."""
UNBOUNDED = ("diloco",)
COMMON = ["run.device=cpu", "parallel.strategy=ddp", "metrics.tensorboard=false", "checkpoint.every=never"]
SMALL = ["batch.size=32", "batch.micro=8", "optimizer.lr=3e-3", "data.samples=4096", "evaluation.share=0.1"]
LARGE = ["batch.size=4", "batch.micro=1", "model.dim=256", "model.ffn=1024", "model.layers=8", "model.seq_len=32"]
LARGE += ["model.vocab_size=4096", "model.heads=8", "model.kv_heads=8", "parallel.bucket_mb=10"]
Timings = list[dict[str, dict[str, float]]]
"""The figures of each method, by round."""


def main() -> None:
    """Run the ranks of this node."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--mbit", type=int)
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--methods")
    start_processes(run_rank, (parser.parse_args(),), nprocs=RANKS_PER_NODE)


@dataclass(frozen=True)
class Result:
    """The loss of a run on held-out samples, and how many times more bytes an fp32 all-reduce would have sent."""

    loss: float
    fewer_bytes: float


def run_rank(local_rank: int, options: argparse.Namespace) -> None:
    """Limit the link, time steps, and measure losses without the limit; rank 0 prints them, and fails at a bound."""
    torch.set_num_threads(1)
    rank = int(os.environ["NODE"]) * RANKS_PER_NODE + local_rank
    address = f"tcp://{os.environ['MASTER_ADDR']}:{PORT}"
    wait_for_first_node()
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=RANKS, timeout=timedelta(minutes=10))
    if local_rank == 0:
        limit_link(options.mbit)
    dist.barrier()
    timings = measure_rounds(rank, options.rounds)
    if rank == 0 and timings:
        print(format_report({}, timings), flush=True)
    dist.barrier()
    if local_rank == 0:
        free_link()
    methods = options.methods.split(",") if options.steps else []
    losses = {method: measure_loss(method, rank, options.steps) for method in methods}
    dist.barrier()
    if rank == 0:
        figures = list_figures(losses, timings, options.mbit)
        print(format_report(losses, timings), report(figures), sep="\n\n", flush=True)
        sys.exit(any(figure.verdict == "FAIL" for figure in figures))


def measure_loss(method: str, rank: int, steps: int) -> Result:
    """Train, and return the loss on held-out samples, and how many times fewer bytes were sent."""
    trainer, batches, held_out = open_run(method, rank, [*SMALL, f"steps={steps}"])
    for _ in range(steps):
        figures = trainer.run_step(next(batches).tensors).compression
    loss = trainer.evaluate([next(held_out).tensors for _ in range(EVALUATED_BATCHES)])["loss"]
    result = Result(loss, float(figures.get("compression_ratio", 1.0)))
    if rank == 0:
        fewer = f"{result.fewer_bytes:.1f} times fewer bytes"
        print(f"  {method}: loss {result.loss:.4f} after {steps} steps, {fewer}", flush=True)
    return result


def measure_rounds(rank: int, rounds: int) -> Timings:
    """Return time and bytes of a step of each method, in every round."""
    if not rounds:
        return []
    runs = {method: open_run(method, rank, LARGE)[:2] for method in TIMED_METHODS}
    timings = []
    for number in range(rounds + 1):
        timings.append({method: time_step(*run) for method, run in runs.items()})
        if rank == 0:
            times = ", ".join(f"{method} {figures['seconds']:.2f} s" for method, figures in timings[-1].items())
            print(f"  round {number} of {rounds}: {times}", flush=True)
    # The first round connects ranks and allocates memory.
    return timings[1:]


def time_step(trainer: Trainer, batches: Loader) -> dict[str, float]:
    """Return the seconds of a step on the slowest rank, and what it sends."""
    batch = next(batches).tensors
    dist.barrier()
    before, start = _read_sent_bytes(), time.perf_counter()
    result = trainer.run_step(batch)
    seconds = torch.tensor(time.perf_counter() - start, dtype=torch.float64)
    dist.barrier()
    on_link = _read_sent_bytes() - before
    dist.all_reduce(seconds, op=dist.ReduceOp.MAX)
    figures = {name: float(value) for name, value in result.compression.items()}
    return {"seconds": float(seconds), "link_mb": on_link / 1e6, **figures}


def open_run(method: str, rank: int, settings: list[str]) -> tuple[Trainer, Loader, Loader]:
    """Return a trainer of the tiny language model, its batches and held-out ones."""
    is_local = method in LOCAL_METHODS
    how = [f"communication.inner_steps={INNER_STEPS}", *LOCAL_METHODS[method]] if is_local else []
    how = how or [f"communication.compression={method}"]
    config = load("tiny-llama", [*COMMON, *settings, *how, f"run.folder={tempfile.mkdtemp()}"])
    local_rank = rank % RANKS_PER_NODE
    device, host = torch.device("cpu"), socket.gethostname()
    world = World(rank, RANKS, local_rank, RANKS_PER_NODE, host, device, (), dist.group.WORLD)
    sources = open_sources(config)
    batches, held_out = (
        Loader(source, config.run.seed, config.batch.size, dp_rank=rank, dp_size=RANKS, workers=0)
        for source in (sources.training, sources.evaluation or sources.training)
    )
    return Trainer.from_config(config, world, int(config.batch.micro)), batches, held_out


def format_report(losses: dict[str, Result], timings: Timings) -> str:
    """Return a table with a row for each method."""
    rows: list[tuple[str, ...]] = []
    whole = losses[WHOLE].loss if losses else 0.0
    for method in dict.fromkeys([*losses, *(TIMED_METHODS if timings else ())]):
        loss, fewer = "", ""
        if method in losses:
            loss = f"{losses[method].loss:.4f} ({100 * (losses[method].loss / whole - 1):+.2f} %)"
            fewer = f"{losses[method].fewer_bytes:.1f}"
        if not timings or method not in TIMED_METHODS:
            rows.append((method, loss, fewer, "", "", "", ""))
            continue
        steps = [timing[method] for timing in timings]
        seconds, link_mb = (statistics.median(step[name] for step in steps) for name in ("seconds", "link_mb"))
        speed_ups = sorted(timing[WHOLE]["seconds"] / timing[method]["seconds"] for timing in timings)
        spread = f"{statistics.median(speed_ups):.2f} ({speed_ups[0]:.2f} to {speed_ups[-1]:.2f})"
        rows.append(
            (method, loss, fewer, f"{seconds:.2f}", spread, f"{link_mb:.1f}", f"{steps[-1].get('wire_mb', 0.0):.2f}")
        )
    return table(("method", "held-out loss", "fewer bytes", "step s", "speed-up", "node MB", "rank MB"), rows)


def list_figures(losses: dict[str, Result], timings: Timings, mbit: int) -> list[Figure]:
    """Return the figures that have bounds."""
    figures = []
    for method in ("topk", *LOCAL_METHODS):
        if method in losses:
            result, whole = losses[method], losses[WHOLE].loss
            most = 100 / (20 if method in LOCAL_METHODS else 50)
            figures.append(
                Figure(f"{method}: bytes of an fp32 all-reduce", 100 / result.fewer_bytes, "%", "100 %", most)
            )
            name, bound = f"{method}: loss above that of whole gradients", None if method in UNBOUNDED else 2
            figures.append(Figure(name, 100 * (result.loss / whole - 1), "%", f"loss {whole:.4f}", bound))
    if timings:
        speed_up = statistics.median(timing[WHOLE]["seconds"] / timing["topk"]["seconds"] for timing in timings)
        seconds = statistics.median(timing[WHOLE]["seconds"] for timing in timings)
        name = f"topk: step at {mbit} Mbit/s, relative to whole gradients"
        figures.append(Figure(name, 100 / speed_up, "%", f"{seconds:.2f} s", 33))
    return figures


def _read_sent_bytes() -> int:
    return int(Path("/sys/class/net/eth0/statistics/tx_bytes").read_text())


if __name__ == "__main__":
    main()
