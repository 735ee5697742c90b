"""Measure how long a checkpoint blocks training and how fast it reaches the disk; needs torch.

    python -m benchmarks.checkpoint [--gb 1.0] [--folder DIR] [--repeat 5] [--batch N] [--json FILE]

A bare training loop saves a model with that much state, alternating with `dd` writing the same bytes with fsync to the
same folder, so that other load affects both alike; the medians are compared.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median

import torch
from torch import nn

from benchmarks.figures import Figure, report
from trainer.checkpoint.checkpoints import Checkpoints

WIDTH = 4096
# AdamW: the weights and two moments, all in fp32.
BYTES_PER_WEIGHT = 12
# At most 5 % of a step, and at least 80 % of dd's rate.
BLOCKED_AT_MOST_PERCENT, TIMES_DD_AT_MOST = 5.0, 1.25


def main() -> int:
    """Measure, print the figures and return 1 if one exceeds its bound."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gb", type=float, default=1.0, help="state to save, in 10^9 bytes")
    parser.add_argument("--folder", type=Path, default=Path(), help="folder to write to, such as one on a shared disk")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--batch", type=int, default=0, help="samples per step; 0 is 256, on a GPU 16384")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="checkpoint-", dir=options.folder) as folder:
        training = Training(options.gb, options.batch)
        figures = measure(training, Path(folder), options.repeat)
    print(report(figures))
    if options.json:
        options.json.write_text(json.dumps([asdict(figure) for figure in figures], indent=2) + "\n")
    return int(any(figure.verdict == "FAIL" for figure in figures))


class Training:
    """A bare training loop of a model whose weights and optimizer state have the given size."""

    def __init__(self, gb: float, batch: int) -> None:
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        layers = max(1, round(gb * 1e9 / BYTES_PER_WEIGHT / WIDTH**2))
        self.model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(layers))).to(self.device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), fused=True)
        self.batch = torch.randn(batch or (16384 if self.device.type == "cuda" else 256), WIDTH, device=self.device)

    def step(self, checkpoints: Checkpoints | None = None) -> float:
        """Train one step and return the seconds that it waited before its update."""
        self.model(self.batch).square().mean().backward()
        started = time.perf_counter()
        if checkpoints is not None:
            checkpoints.before_update()
        waited = time.perf_counter() - started
        self.optimizer.step()
        self.optimizer.zero_grad()
        return waited

    def timed_step(self, checkpoints: Checkpoints | None = None) -> tuple[float, float]:
        started = time.perf_counter()
        waited = self.step(checkpoints)
        self.finish()
        return time.perf_counter() - started, waited

    def tensors(self) -> dict[str, torch.Tensor]:
        tensors: dict[str, torch.Tensor] = {}
        for name, weight in self.model.named_parameters():
            tensors[f"model.{name}"] = weight
            tensors |= {f"optim.{name}.{key}": value for key, value in self.optimizer.state[weight].items()}
        return tensors

    def finish(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()


@dataclass
class Times:
    """Seconds of each repetition."""

    undisturbed: list[float] = field(default_factory=list)
    saving: list[float] = field(default_factory=list)
    blocked: list[float] = field(default_factory=list)
    during_training: list[float] = field(default_factory=list)
    whole: list[float] = field(default_factory=list)
    writing: list[float] = field(default_factory=list)
    dd: list[float] = field(default_factory=list)


def measure(training: Training, folder: Path, repeat: int) -> list[Figure]:
    """Save and run dd in turn, and return the figures."""
    times = Times()
    checkpoints = Checkpoints(folder / "checkpoints", keep=1)
    for _ in range(2):
        training.timed_step()
    tensors = training.tensors()
    checkpoints.prepare(tensors)
    save_alone(checkpoints, tensors, 1)
    shard = next((folder / "checkpoints").glob("*/shard-*"))
    size = shard.stat().st_size
    with tempfile.TemporaryDirectory(prefix="checkpoint-", dir="/dev/shm") as memory:
        source = shutil.copy(shard, memory)
        for number in range(repeat):
            print(f"  save {number + 1} of {repeat} ...", file=sys.stderr, flush=True)
            times.undisturbed.append(training.timed_step()[0])
            save_during_training(training, checkpoints, tensors, 2 * number + 2, times)
            times.dd.append(time_dd(Path(source), folder / "dd"))
            whole, writing = save_alone(checkpoints, tensors, 2 * number + 3)
            times.whole.append(whole)
            times.writing.append(writing)
    checkpoints.close()
    return build_figures(times, size)


def save_during_training(
    training: Training, checkpoints: Checkpoints, tensors: dict[str, torch.Tensor], step: int, times: Times
) -> None:
    """Save while training until the checkpoint is on disk, and record the times; the first step waits for the copy."""
    started = time.perf_counter()
    checkpoints.save(step, tensors, {"step": step})
    blocked = time.perf_counter() - started
    took, waited = training.timed_step(checkpoints)
    times.saving.append(took)
    times.blocked.append(blocked + waited)
    while checkpoints.busy:
        training.timed_step(checkpoints)
    (event,) = checkpoints.poll()
    if event.kind != "published":
        sys.exit(event.message)
    times.during_training.append(event.seconds)


def save_alone(checkpoints: Checkpoints, tensors: dict[str, torch.Tensor], step: int) -> tuple[float, float]:
    """Return the seconds from the call to the published checkpoint, and those of its writer alone."""
    started = time.perf_counter()
    checkpoints.save(step, tensors, {"step": step})
    checkpoints.wait()
    took = time.perf_counter() - started
    (event,) = checkpoints.poll()
    if event.kind != "published":
        sys.exit(event.message)
    return took, event.seconds


def time_dd(source: Path, target: Path) -> float:
    """Return the seconds in which dd copies a file to disk."""
    command = ["dd", f"if={source}", f"of={target}", "bs=8M", "conv=fsync", "status=none"]
    started = time.perf_counter()
    subprocess.run(command, check=True)
    took = time.perf_counter() - started
    target.unlink()
    return took


def build_figures(times: Times, size: int) -> list[Figure]:
    """Return the medians of all repetitions for a checkpoint of `size` bytes."""
    step, blocked, plain, ours = (median(t) for t in (times.undisturbed, times.blocked, times.dd, times.writing))
    gb = size / 1e9
    rates = f"dd {gb / plain:.2f} GB/s, ours {gb / ours:.2f} GB/s"
    slower = median(times.saving) / step
    return [
        Figure("step without a save", step),
        Figure(f"training blocked by a save of {gb:.2f} GB", blocked * 1e3, "ms"),
        Figure("blocked, share of a step", 100 * blocked / step, "%", f"step {step:.2f} s", BLOCKED_AT_MOST_PERCENT),
        Figure("step in which the copy runs, times one without", slower, "x", f"step {step:.2f} s"),
        Figure("dd conv=fsync of the same bytes to the same folder", plain),
        Figure("write, hash and publish", ours),
        Figure("write, times dd (80 % of its rate is 1.25)", ours / plain, "x", rates, TIMES_DD_AT_MOST),
        Figure("save to published, with the copy before the write", median(times.whole), "s", f"dd {plain:.2f} s"),
        Figure("write, hash and publish during training", median(times.during_training), "s", f"alone {ours:.2f} s"),
    ]


if __name__ == "__main__":
    sys.exit(main())
