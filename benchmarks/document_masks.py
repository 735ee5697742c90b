"""Compare steps whose documents do not see each other with steps of plain causal attention; needs torch.

    python -m benchmarks.document_masks [--device cpu|cuda] [--rounds 8] [--json FILE] [key.sub=value ...]

The same trainer runs all of them in turns, so that other load affects all alike; the medians are compared. Samples with
a first document of one token show the cost alone: attention computes as much as without documents. On a GPU the model
is llama-1b with samples of 4096 tokens, on a CPU a small one.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Literal

import torch

from benchmarks.figures import Figure, report
from benchmarks.overhead import MODEL, synchronized_clock
from trainer.api import Trainer
from trainer.config.load import load
from trainer.config.models import DecoderConfig
from trainer.config.schema import Config
from trainer.world import start

LARGE = ("llama-1b", ["batch.size=2", "batch.micro=2", "parallel.strategy=single"])
SMALL = ("tiny-llama", [*MODEL, "model.seq_len=512"])
BOUND_PERCENT = 5.0
WARMUP_ROUNDS = 3
STEPS_PER_ROUND = 4
# The documents of a sample by what is said of them; a number means as many tokens on average.
CASES: dict[str, Literal["one", "one token", "two"] | int] = {
    "one document per sample": "one",
    "one token and a document": "one token",
    "two documents of random lengths": "two",
    "documents of about 1024 tokens": 1024,
    "documents of about 128 tokens": 128,
}


def make_batch(config: Config, device: torch.device) -> dict[str, torch.Tensor]:
    """Return random tokens, as many as a step of the run has."""
    model = config.model
    if not isinstance(model, DecoderConfig):
        raise SystemExit(f"{model.family} is not a language model")
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(model.vocab_size, (config.batch.size, model.seq_len + 1), generator=generator).to(device)
    return {"inputs": tokens[:, :-1], "targets": tokens[:, 1:]}


def draw_documents(shape: torch.Size, case: str, seed: int) -> torch.Tensor:
    """Return the documents of some samples; other ones for each seed, as in a training run."""
    generator = torch.Generator().manual_seed(seed)
    kind = CASES[case]
    is_first = torch.zeros(shape, dtype=torch.bool)
    if isinstance(kind, int):
        is_first = torch.rand(shape, generator=generator) * kind < 1.0
        is_first[:, 0] = False
    elif kind != "one":
        second = torch.randint(1, shape[1], (shape[0], 1), generator=generator)
        is_first.scatter_(1, second if kind == "two" else torch.ones_like(second), value=True)
    return is_first.cumsum(1).to(torch.int32)


def time_steps(trainer: Trainer, batches: list[dict[str, torch.Tensor]]) -> float:
    """Return the seconds per step."""
    began = synchronized_clock(trainer.world.device)
    for batch in batches:
        trainer.run_step(batch)
    return (synchronized_clock(trainer.world.device) - began) / len(batches)


def measure(trainer: Trainer, config: Config, rounds: int) -> tuple[float, dict[str, float]]:
    """Return the seconds of a step with plain causal attention, and with documents by their case."""
    device = trainer.world.device
    batch = make_batch(config, device)
    causal: list[float] = []
    separate: dict[str, list[float]] = {case: [] for case in CASES}
    for number in range(WARMUP_ROUNDS + rounds):
        seeds = range(number * STEPS_PER_ROUND, (number + 1) * STEPS_PER_ROUND)
        causal.append(time_steps(trainer, [batch] * STEPS_PER_ROUND))
        for case, times in separate.items():
            documents = [draw_documents(batch["inputs"].shape, case, seed) for seed in seeds]
            if device.type == "cuda":
                documents = [each.pin_memory() for each in documents]
            times.append(time_steps(trainer, [{**batch, "documents": each} for each in documents]))
    medians = {case: median(times[WARMUP_ROUNDS:]) for case, times in separate.items()}
    return median(causal[WARMUP_ROUNDS:]), medians


def main() -> int:
    """Measure, print the figures and return 1 if one exceeds its bound."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--json", type=Path)
    parser.add_argument("overrides", nargs="*")
    options = parser.parse_args()
    is_gpu = options.device == "cuda"
    preset, settings = LARGE if is_gpu else SMALL
    with tempfile.TemporaryDirectory() as folder:
        run = [f"run.folder={folder}", f"run.device={options.device}", "data.documents=separate"]
        config = load(preset, [*settings, *run, *options.overrides])
        trainer = Trainer.from_config(config, start(options.device, 60.0), config.batch.size)
        print("\n".join(trainer.describe()), flush=True)
        causal, separate = measure(trainer, config, options.rounds)
        trainer.close()
    reference = f"causal attention, {causal * 1000:.1f} ms"
    figures = [Figure("step with plain causal attention", causal * 1000, "ms")]
    for case, seconds in separate.items():
        overhead = (seconds / causal - 1) * 100
        # A CPU builds a mask of all pairs of tokens, and has no kernel that skips any.
        figures.append(Figure(f"step with {case}", overhead, "%", reference, BOUND_PERCENT if is_gpu else None))
    print(report(figures))
    if options.json:
        options.json.write_text(json.dumps([asdict(figure) for figure in figures]))
    return int(any(figure.verdict == "FAIL" for figure in figures))


if __name__ == "__main__":
    sys.exit(main())
