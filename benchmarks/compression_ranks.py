"""The ranks of a node of benchmarks.compression, which starts it; needs torch."""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed
import torch.multiprocessing

from benchmarks.figures import Figure, report
from trainer.api import Trainer
from trainer.config.load import load
from trainer.data.loader import Loader
from trainer.data.registry import open_source
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
LAST_STEPS = 20
COMMON = ["run.device=cpu", "parallel.strategy=ddp", "metrics.tensorboard=false", "checkpoint.every=never"]
SMALL = ["batch.size=32", "batch.micro=8", "optimizer.lr=3e-3", "data.samples=4096"]
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


def run_rank(local_rank: int, options: argparse.Namespace) -> None:
    """Limit the link, time steps, and measure losses without the limit; rank 0 prints them, and fails at a bound."""
    torch.set_num_threads(1)
    rank = int(os.environ["NODE"]) * RANKS_PER_NODE + local_rank
    address = f"tcp://{os.environ['MASTER_ADDR']}:{PORT}"
    _wait_for_name(os.environ["MASTER_ADDR"])
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=RANKS, timeout=timedelta(minutes=10))
    if local_rank == 0:
        limit_link(options.mbit)
    dist.barrier()
    timings = measure_rounds(rank, options.rounds)
    dist.barrier()
    if local_rank == 0:
        subprocess.run(["tc", "qdisc", "del", "dev", "eth0", "root"], check=True)
    losses = {method: measure_loss(method, rank, options.steps) for method in options.methods.split(",")}
    dist.barrier()
    if rank == 0:
        figures = list_figures(losses, timings, options.mbit)
        print(format_report(losses, timings), report(figures), sep="\n\n", flush=True)
        sys.exit(any(figure.verdict == "FAIL" for figure in figures))


def measure_loss(method: str, rank: int, steps: int) -> float:
    """Return the mean loss of the last steps of a run."""
    trainer, batches = open_run(method, rank, [*SMALL, f"steps={steps}"])
    losses = [float(trainer.mean_over_ranks(trainer.train_step(next(batches).tensors))) for _ in range(steps)]
    if rank == 0:
        print(f"{method}: loss {losses[0]:.3f} to {statistics.fmean(losses[-LAST_STEPS:]):.4f}", flush=True)
    return statistics.fmean(losses[-LAST_STEPS:])


def measure_rounds(rank: int, rounds: int) -> Timings:
    """Return time and bytes of a step of each method, in every round."""
    runs = {method: open_run(method, rank, LARGE) for method in TIMED_METHODS}
    timings = [{method: time_step(*run) for method, run in runs.items()} for _ in range(rounds + 1)]
    if rank == 0:
        print({method: round(figures["seconds"], 2) for method, figures in timings[-1].items()}, flush=True)
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


def open_run(method: str, rank: int, settings: list[str]) -> tuple[Trainer, Loader]:
    """Return a trainer of the tiny language model and its batches."""
    folder = tempfile.mkdtemp()
    config = load("tiny-llama", [*COMMON, *settings, f"communication.compression={method}", f"run.folder={folder}"])
    local_rank = rank % RANKS_PER_NODE
    device, host = torch.device("cpu"), socket.gethostname()
    world = World(rank, RANKS, local_rank, RANKS_PER_NODE, host, device, (), dist.group.WORLD)
    batches = Loader(open_source(config), config.run.seed, config.batch.size, dp_rank=rank, dp_size=RANKS, workers=0)
    return Trainer.from_config(config, world, int(config.batch.micro)), batches


def limit_link(mbit: int) -> None:
    """Limit what this node sends; ranks of the same node reach each other through its loopback interface."""
    rate = ["rate", f"{mbit}mbit", "burst", "256k", "latency", "50ms"]
    subprocess.run(["tc", "qdisc", "add", "dev", "eth0", "root", "tbf", *rate], check=True)


def format_report(losses: dict[str, float], timings: Timings) -> str:
    """Return a table with a row for each method."""
    rows: list[tuple[str, ...]] = []
    for method in dict.fromkeys([*losses, *TIMED_METHODS]):
        loss = f"{losses[method]:.4f} ({100 * (losses[method] / losses[WHOLE] - 1):+.2f} %)" if method in losses else ""
        if method not in TIMED_METHODS:
            rows.append((method, loss, "", "", "", "", ""))
            continue
        steps = [timing[method] for timing in timings]
        seconds, link_mb = (statistics.median(step[name] for step in steps) for name in ("seconds", "link_mb"))
        speed_ups = sorted(timing[WHOLE]["seconds"] / timing[method]["seconds"] for timing in timings)
        spread = f"{statistics.median(speed_ups):.2f} ({speed_ups[0]:.2f} to {speed_ups[-1]:.2f})"
        sent = [f"{steps[-1].get(name, 0.0):.2f}" for name in ("wire_mb", "compression_ratio")]
        rows.append((method, loss, f"{seconds:.2f}", spread, f"{link_mb:.1f}", *sent))
    return table(("method", "loss", "step s", "speed-up", "node MB", "rank MB", "ratio"), rows)


def list_figures(losses: dict[str, float], timings: Timings, mbit: int) -> list[Figure]:
    """Return the figures of top-K that have bounds."""
    speed_up = statistics.median(timing[WHOLE]["seconds"] / timing["topk"]["seconds"] for timing in timings)
    seconds = statistics.median(timing[WHOLE]["seconds"] for timing in timings)
    fewer = timings[-1]["topk"]["compression_ratio"]
    worse = 100 * (losses["topk"] / losses[WHOLE] - 1)
    return [
        Figure("topk: bytes, relative to an fp32 all-reduce", 100 / fewer, "%", "100 %", 2),
        Figure("topk: loss above that of whole gradients", worse, "%", f"loss {losses[WHOLE]:.4f}", 2),
        Figure(f"topk: step at {mbit} Mbit/s, relative to whole ones", 100 / speed_up, "%", f"{seconds:.2f} s", 33),
    ]


def _read_sent_bytes() -> int:
    return int(Path("/sys/class/net/eth0/statistics/tx_bytes").read_text())


def _wait_for_name(host: str) -> None:
    """Wait until the first node has a name in the network."""
    for _ in range(100):
        try:
            socket.gethostbyname(host)
        except OSError:
            time.sleep(0.2)
        else:
            return


if __name__ == "__main__":
    main()
