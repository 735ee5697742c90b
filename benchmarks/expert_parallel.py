"""Compare training with expert parallelism on 2, 4 and 8 CPU ranks with a single rank; needs torch.

    python -m benchmarks.expert_parallel [--steps 20] [--json FILE] [key.sub=value ...]

All runs start from the same weights and see the same batches. Losses and gradient norms of every step are compared.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.figures import Figure, report
from tests.trainer.curves import config_of
from tests.trainer.ranks import on_ranks

MODEL = ["model.dim=32", "model.ffn=16", "model.vocab_size=64", "batch.size=16", "optimizer.clip_norm=0.3"]
LAYOUTS = [
    (2, "ddp expert=2"),
    (2, "fsdp expert=2"),
    (4, "ddp expert=2"),
    (4, "fsdp expert=4"),
    (4, "hsdp shard=2 expert=2"),
    (4, "ddp pipeline=2 expert=2"),
    (8, "ddp expert=8"),
    (8, "fsdp expert=4"),
    (8, "hsdp shard=4 expert=8"),
]
LOSS_BOUND, NORM_BOUND = 1e-5, 1e-4
MILLIONTH = 1e-6
MICRO = 1


def main() -> int:
    """Measure, print the figures and return 1 if one exceeds its bound."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--json", type=Path)
    parser.add_argument("overrides", nargs="*")
    options = parser.parse_args()
    alone, *_ = train(1, "single", options.steps, options.overrides)
    figures = []
    for ranks, layout in LAYOUTS:
        curves, *_ = train(ranks, layout, options.steps, options.overrides)
        name, reference = f"{ranks} ranks, {layout}", f"single rank, {options.steps} steps"
        loss = max(abs(ours - theirs) for ours, theirs in zip(curves["loss"], alone["loss"], strict=True))
        norm = max(abs(ours / theirs - 1) for ours, theirs in zip(curves["norm"], alone["norm"], strict=True))
        for what, value, bound in (("the loss", loss, LOSS_BOUND), ("the norm, relative", norm, NORM_BOUND)):
            title = f"{name}: largest difference of {what}"
            figures.append(Figure(title, value / MILLIONTH, "x 1e-6", reference, bound / MILLIONTH))
    print(report(figures))
    if options.json:
        options.json.write_text(json.dumps([asdict(figure) for figure in figures]))
    return int(any(figure.verdict == "FAIL" for figure in figures))


def train(ranks: int, layout: str, steps: int, overrides: list[str]) -> list[dict[str, Any]]:
    """Return the curves of every rank."""
    strategy, *parts = layout.split()
    parallel = [f"parallel.strategy={strategy}", *(f"parallel.{part}" for part in parts)]
    config = config_of("tiny-moe", [*MODEL, *overrides, *parallel])
    return on_ranks("tests.trainer.curves:curve", ranks=ranks, config=config, micro=MICRO, steps=steps)


if __name__ == "__main__":
    sys.exit(main())
