"""Compare an evaluation with the forward passes of a bare torch loop over the same samples; needs torch.

    python -m benchmarks.evaluation [--rounds 7] [--device cpu|cuda] [--json FILE] [key.sub=value ...]

Both run in this process, in turns, so that other load affects both alike; the medians are compared.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median

import torch

from benchmarks.figures import Figure, report
from benchmarks.overhead import MODEL, synchronized_clock
from trainer.api import Trainer
from trainer.config.load import load
from trainer.config.schema import Config
from trainer.data.loader import Loader
from trainer.data.registry import open_sources
from trainer.data.source import Source
from trainer.evaluation.evaluator import Evaluator
from trainer.models.functional import compute_loss
from trainer.world import start

BATCHES = 24


def run_bare(config: Config, trainer: Trainer, source: Source) -> float:
    """Return the seconds of forward passes over all samples, with their loss."""
    model, device = trainer.engine.modules[0], trainer.world.device
    began = synchronized_clock(device)
    total = torch.zeros((), device=device)
    autocast = torch.autocast(device.type, torch.bfloat16, enabled=config.precision == "bf16")
    with closing(Loader(source, 0, config.batch.size, device=device)) as loader, torch.no_grad(), autocast:
        for _ in range(source.length // config.batch.size):
            batch = next(loader).tensors
            total += compute_loss(model(batch["inputs"]), batch["targets"])
    return synchronized_clock(device) - began


def main() -> int:
    """Measure, print the figures and return 1 if one exceeds its bound."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", type=Path)
    parser.add_argument("overrides", nargs="*")
    options = parser.parse_args()
    bare, ours = [], []
    with tempfile.TemporaryDirectory() as folder:
        held_out = ["evaluation.share=0.5", f"run.folder={folder}"]
        config = load("tiny-llama", [*MODEL, *held_out, f"run.device={options.device}", *options.overrides])
        samples = 2 * BATCHES * config.batch.size
        config = replace(config, data=replace(config.data, samples=samples))
        trainer = Trainer.from_config(config, start(options.device, 60.0), config.batch.size)
        source = open_sources(config).evaluation
        if source is None:
            raise SystemExit("there is no evaluation set")
        evaluator = Evaluator(trainer.engine, source, config, config.batch.size)
        for _ in range(options.rounds + 1):
            bare.append(run_bare(config, trainer, source))
            result = evaluator.run()
            ours.append(result.seconds if result else float("nan"))
        trainer.close()
    # The first round warms up.
    usual, measured = median(bare[1:]), median(ours[1:])
    figures = [
        Figure("forward passes of a bare loop", usual * 1000, "ms"),
        Figure("evaluation of the same samples", measured * 1000, "ms", f"bare {usual * 1000:.0f} ms"),
        Figure("evaluation overhead", (measured / usual - 1) * 100, "%", f"bare loop, median of {options.rounds}", 5.0),
    ]
    print(report(figures))
    if options.json:
        options.json.write_text(json.dumps([asdict(figure) for figure in figures]))
    return int(any(figure.verdict == "FAIL" for figure in figures))


if __name__ == "__main__":
    sys.exit(main())
