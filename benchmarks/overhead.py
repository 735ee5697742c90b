"""Compare the trainer with a bare torch loop of the same model, data and update; needs torch.

    python -m benchmarks.overhead [--rounds 5] [--steps 40] [--device cpu|cuda] [--json FILE] [key.sub=value ...]

Both run in this process, in turns, so that other load affects both alike; the medians are compared. The order
alternates because step times of a GPU rise by 2 % while it warms up, which is as much as the bound.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from statistics import mean, median

import torch

from benchmarks.figures import Figure, report
from trainer.config.load import load
from trainer.config.schema import Config
from trainer.data.loader import Loader
from trainer.data.registry import open_source
from trainer.loop.session import Session
from trainer.metrics import json_lines
from trainer.models.functional import compute_loss
from trainer.models.init import fill
from trainer.models.registry import build_model

# A step takes a tenth of a second on one core: short enough to show overhead, long enough to be realistic.
MODEL = [
    "model.dim=256", "model.layers=4", "model.heads=4", "model.kv_heads=2", "model.ffn=768", "model.seq_len=128",
    "model.vocab_size=2048", "batch.size=4", "batch.micro=4", "parallel.strategy=single", "checkpoint.every=0",
]  # fmt: skip

# These steps are not timed: allocators and compilers warm up, and the first metrics measure the machine's peak.
WARMUP_STEPS = 10
# The trainer profiles this step after each start and reads the profile in the next one.
PROFILED_STEP = 10


def bare_loop(config: Config, device: torch.device) -> float:
    """Return the seconds per step of a minimal training loop."""
    # The same loader, which reads ahead on other cores, so that only the loops differ.
    batches = Loader(open_source(config), config.run.seed, config.batch.size, device=device)
    model = build_model(config.model).to(device)
    model.init_buffers(device)
    fill([model], config.run.seed)
    settings = config.optimizer
    optimizer = torch.optim.AdamW(
        model.parameters(),
        settings.lr,
        (settings.beta1, settings.beta2),
        settings.eps,
        settings.weight_decay,
        fused=True,
    )

    def forward(inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=config.precision == "bf16"):
            return compute_loss(model(inputs), targets)

    if config.compile.mode == "whole":
        forward = torch.compile(forward, backend=config.compile.backend)
    began = 0.0
    for step in range(config.steps):
        if step == WARMUP_STEPS:
            began = synchronized_clock(device)
        batch = next(batches).tensors
        forward(batch["inputs"], batch["targets"]).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), settings.clip_norm)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    took = synchronized_clock(device) - began
    batches.close()
    return took / (config.steps - WARMUP_STEPS)


def trainer_loop(config: Config) -> float:
    """Return the seconds per step of a run with everything on: records, votes, watchdog, progress."""
    if Session(config, time.time()).run() != 0:
        raise SystemExit("the run did not finish")
    lines = json_lines.read_lines(Path(config.run.folder) / "metrics" / "rank-00000.jsonl")
    # step_s runs from the end of one step to the end of the next and includes everything in between.
    times = {line["step"]: line["step_s"] for line in lines}
    return _per_step(times, config.metrics.every, config.metrics.profile_every)


def _per_step(times: dict[int, float], every: int, profile_every: int) -> float:
    """Return the mean step; the profiled steps count as often as in a long run, every `profile_every` steps."""
    profiled = [step for step in times if PROFILED_STEP <= step < PROFILED_STEP + 2 * every]
    plain = mean(took for step, took in times.items() if step > WARMUP_STEPS and step not in profiled)
    profile = sum(times[step] - plain for step in profiled) * every
    return plain + (max(profile, 0.0) / profile_every if profile_every else 0.0)


def synchronized_clock(device: torch.device) -> float:
    """Wait for the device and return the time in seconds."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def main() -> int:
    """Measure, print the figures and return 1 if one exceeds its bound."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", type=Path)
    parser.add_argument("overrides", nargs="*")
    options = parser.parse_args()
    device = torch.empty(0, device=options.device).device  # adds the index of the device
    bare, ours = [], []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(options.rounds):
            where = f"run.folder={folder}/{number}"
            more = [*MODEL, f"steps={options.steps}", f"run.device={options.device}", where, *options.overrides]
            config = load("tiny-llama", more)
            if number % 2:
                ours.append(trainer_loop(config))
            bare.append(bare_loop(config, device))
            if number % 2 == 0:
                ours.append(trainer_loop(config))
    extra = median(ours) / median(bare) - 1
    tokens = config.batch.size * config.model.seq_len  # type: ignore[union-attr]  # tiny-llama has one
    figures = [
        Figure("bare torch loop", median(bare) * 1000, "ms"),
        Figure("trainer, everything on", median(ours) * 1000, "ms", f"bare {median(bare) * 1000:.1f} ms"),
        Figure("trainer overhead", extra * 100, "%", f"bare loop, median of {options.rounds}", 2.0),
        Figure("trainer", tokens / median(ours), "tokens/s", f"bare {tokens / median(bare):.0f} tokens/s"),
    ]
    print(report(figures))
    if options.json:
        options.json.write_text(json.dumps([asdict(figure) for figure in figures]))
    return int(any(figure.verdict == "FAIL" for figure in figures))


if __name__ == "__main__":
    sys.exit(main())
