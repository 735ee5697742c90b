"""How much of its communication an engine hides behind its backward and forward passes, on two nodes of a rank each.

The link between the nodes is limited, so that messages wait for the link and not for a processor. In each round, in
turns, the ranks take five times:

- compute alone: a forward and a backward pass of the plain model, without any engine, on a rank's samples;
- the forward pass of these alone;
- communication alone: the collectives of a step, on tensors of the same sizes, one after the other. They are those of
  muster's engine; torch's has the same;
- together: the passes of torch's engine, and of muster's.

What could be hidden is all communication, as long as there is enough to compute meanwhile: under ddp the backward pass,
because there is nothing to send before it; under fsdp both passes. So a rank gets as many samples as make its backward
pass at least 1.2 times as long as the communication. The hidden share is (compute + communication - together) / the
shorter of communication and what it can hide behind. Hooks, copies, and the first and last messages of a step, which
nothing can hide, count as not hidden.

The share is the median over the rounds. Other work on the machine makes single times longer, never shorter, so the
share of the shortest of each time is shown too. If too few rounds have a backward pass that is long enough, there is no
share, and the benchmark fails with the times.

Ranks that compute on all cores cannot hide processor time, whatever the engine: copies, additions, and what the kernel
does for the network. So the table also has the share of what the processors leave to hide. It is computed from the idle
time of all cores (/proc/stat), which includes interrupts: if the work of computing and of communication, divided among
all cores, takes longer than computing alone, the difference cannot be hidden. Work of others on the machine would count
too, so this share means something on a quiet machine only. The processor times of the first rank and of the backend's
threads in it, which do not depend on other work, are shown beside it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from time import process_time
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed

from benchmarks.engine_runs import make_engine
from benchmarks.idle_time import read_idle_s
from benchmarks.node_link import free_link, limit_link
from benchmarks.overhead import synchronized_clock
from benchmarks.overlap_figures import ENGINES, FEWEST_SAMPLES, count_samples
from trainer.objective import CrossEntropy

# Many of the names used here have no types, and mypy must give the same result where torch is not installed.
dist: Any = torch.distributed

# Equal layers, a small vocabulary and small buckets: what is sent last has nothing left to hide it, and in a model of
# few layers it would be a large part of everything.
OVERLAP_MODEL = ("model.layers=6", "model.vocab_size=512", "parallel.bucket_mb=4")
_WARMUP_ROUNDS = 2
_RECORDED = ("all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor")
Call = tuple[str, list[int]]
"""The name of a collective and the sizes of its tensors."""


def measure_overlap(settings: dict[str, list[str]], rank: int, rounds: int, mbit: int) -> dict[str, Any]:
    """Return the times of each round on the slowest rank, in seconds, the collectives of a step, and the samples."""
    ranks, plain = dist.get_world_size(), [*settings["torch"], "parallel.strategy=single"]
    # Only calls of the backend are recorded.
    backend = [*settings["muster"], "communication.pattern=backend"]
    run, _ = make_passes(backend, rank, ranks, FEWEST_SAMPLES)
    # The first step has more messages, which compare the ranks.
    run()
    calls: list[Call] = []
    with record_calls(calls):
        run()
    runs: dict[str, Callable[[], object]] = {"communication": make_replay(calls)}
    limit_link(mbit)
    dist.barrier()
    samples = FEWEST_SAMPLES
    while True:
        runs["compute"], runs["forward"] = make_passes(plain, 0, 1, samples)
        measured = [measure_round(runs, number, torch.device("cpu")) for number in range(_WARMUP_ROUNDS + 1)][-1]
        backward = measured["compute"] - measured["forward"]
        needed = count_samples(samples, backward, measured["communication"])
        if needed == samples:
            break
        samples = needed
    for name in ENGINES:
        runs[name], _ = make_passes(settings[name], rank, ranks, samples)
    processor_times: list[dict[str, float]] = []
    idle_times: list[dict[str, float]] = []
    rounds_measured = []
    for number in range(_WARMUP_ROUNDS + rounds):
        processor_times.append({})
        idle_times.append({})
        counted = {
            name: partial(count_processor_time, name, run, processor_times[-1], idle_times[-1])
            for name, run in runs.items()
        }
        rounds_measured.append(measure_round(counted, number, torch.device("cpu")))
        if rank == 0:
            print(f"  round {number + 1} of {_WARMUP_ROUNDS + rounds}", file=sys.stderr, flush=True)
    free_link()
    return {
        "seconds": rounds_measured[_WARMUP_ROUNDS:],
        "processor_seconds": processor_times[_WARMUP_ROUNDS:],
        "idle_seconds": idle_times[_WARMUP_ROUNDS:],
        "cores": os.cpu_count(),
        "calls": calls,
        "samples": samples,
    }


def count_processor_time(
    name: str, run: Callable[[], object], seconds: dict[str, float], idle_seconds: dict[str, float]
) -> None:
    """Run a function; note how long all threads of this process computed, and all cores together were idle."""
    began, idle = process_time(), read_idle_s()
    run()
    seconds[name], idle_seconds[name] = process_time() - began, read_idle_s() - idle


def make_passes(
    settings: list[str], rank: int, ranks: int, samples: int
) -> tuple[Callable[[], object], Callable[[], object]]:
    """Build an engine; return the function that computes gradients on so many samples, and one of the forward pass."""
    # All ranks of the plain model have as many samples as a rank of the others.
    settings = [*settings, f"batch.size={samples * ranks}"]
    config, engine, batch = make_engine(settings, rank, ranks, torch.device("cpu"))
    loss = CrossEntropy(config.loss.chunk_tokens)

    def run() -> None:
        for _, weight in engine.named_parameters():
            weight.grad = None
        engine.forward_backward(batch, loss, samples, None)

    return run, lambda: engine.measure(batch, loss, samples)


@contextmanager
def record_calls(calls: list[Call]) -> Iterator[None]:
    """Add the collectives of torch.distributed that are called in this context to a list."""

    def record(name: str, plain: Any, *tensors: Any, **options: Any) -> Any:
        calls.append((name, [tensor.numel() for tensor in tensors if isinstance(tensor, torch.Tensor)]))
        return plain(*tensors, **options)

    patches = [patch.object(dist, name, partial(record, name, getattr(dist, name))) for name in _RECORDED]
    for each in patches:
        each.start()
    try:
        yield
    finally:
        for each in patches:
            each.stop()


def make_replay(calls: list[Call]) -> Callable[[], None]:
    """Return the function that calls the collectives again, one after the other."""
    prepared = [(getattr(dist, name), [torch.zeros(size) for size in sizes]) for name, sizes in calls]

    def run() -> None:
        for collective, tensors in prepared:
            collective(*tensors)

    return run


def measure_round(runs: Mapping[str, Callable[[], object]], number: int, device: torch.device) -> dict[str, float]:
    """Return the seconds of each run on the slowest rank; every other round takes them in reverse."""
    seconds = {}
    for name in list(runs) if number % 2 else list(runs)[::-1]:
        dist.barrier()
        began = synchronized_clock(device)
        runs[name]()
        took = torch.tensor(synchronized_clock(device) - began, dtype=torch.float64)
        dist.all_reduce(took, op=dist.ReduceOp.MAX)
        seconds[name] = float(took)
    return seconds
