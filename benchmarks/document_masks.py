"""Compare steps whose documents do not see each other with steps of plain causal attention; needs torch.

    python -m benchmarks.document_masks [--device cpu|cuda] [--rounds 8] [--json FILE] [key.sub=value ...]

The same trainer runs all of them in turns, so that other load affects all alike; the medians are compared. Samples of
one document show the cost alone: attention computes as much as without documents. On a GPU the model is llama-1b
with samples of 4096 tokens, on a CPU a small one.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from statistics import median

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
# Mean tokens per document; 0 means that a sample is one document.
DOCUMENT_TOKENS = (0, 1024, 128)


def make_batch(config: Config, device: torch.device) -> dict[str, torch.Tensor]:
    """Return random tokens, as many as a step of the run has."""
    model = config.model
    if not isinstance(model, DecoderConfig):
        raise SystemExit(f"{model.family} is not a language model")
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(model.vocab_size, (config.batch.size, model.seq_len + 1), generator=generator).to(device)
    return {"inputs": tokens[:, :-1], "targets": tokens[:, 1:]}


def draw_documents(shape: torch.Size, mean_tokens: int, seed: int) -> torch.Tensor:
    """Return documents of random lengths; other ones for each seed, as in a training run."""
    generator = torch.Generator().manual_seed(seed)
    is_first = torch.rand(shape, generator=generator) * mean_tokens < (1.0 if mean_tokens else 0.0)
    is_first[:, 0] = False
    return is_first.cumsum(1).to(torch.int32)


def time_steps(trainer: Trainer, batches: list[dict[str, torch.Tensor]]) -> float:
    """Return the seconds per step."""
    began = synchronized_clock(trainer.world.device)
    for batch in batches:
        trainer.run_step(batch)
    return (synchronized_clock(trainer.world.device) - began) / len(batches)


def measure(trainer: Trainer, config: Config, rounds: int) -> tuple[float, dict[int, float]]:
    """Return the seconds of a step with plain causal attention, and by the mean length of documents."""
    device = trainer.world.device
    batch = make_batch(config, device)
    causal: list[float] = []
    separate: dict[int, list[float]] = {tokens: [] for tokens in DOCUMENT_TOKENS}
    for number in range(WARMUP_ROUNDS + rounds):
        seeds = range(number * STEPS_PER_ROUND, (number + 1) * STEPS_PER_ROUND)
        causal.append(time_steps(trainer, [batch] * STEPS_PER_ROUND))
        for tokens, times in separate.items():
            documents = [draw_documents(batch["inputs"].shape, tokens, seed).to(device) for seed in seeds]
            times.append(time_steps(trainer, [{**batch, "documents": each} for each in documents]))
    medians = {tokens: median(times[WARMUP_ROUNDS:]) for tokens, times in separate.items()}
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
    for tokens, seconds in separate.items():
        kind = f"documents of about {tokens} tokens" if tokens else "one document per sample"
        overhead = (seconds / causal - 1) * 100
        # A CPU builds a mask of all pairs of tokens, and has no kernel that skips any.
        figures.append(Figure(f"step with {kind}", overhead, "%", reference, BOUND_PERCENT if is_gpu else None))
    print(report(figures))
    if options.json:
        options.json.write_text(json.dumps([asdict(figure) for figure in figures]))
    return int(any(figure.verdict == "FAIL" for figure in figures))


if __name__ == "__main__":
    sys.exit(main())
