"""Compare the loss in chunks of tokens with a loss over all logits: time and memory of head and loss; needs torch.

    python -m benchmarks.objective [--tokens 16384] [--dim 4096] [--vocab 128256] [--device cuda]

Both run in this process, in turns, forward and backward. The bound is that of the default `loss.chunk_tokens`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from functools import partial
from statistics import median

import torch

from benchmarks.figures import Figure, report
from benchmarks.overhead import synchronized_clock
from benchmarks.peak_memory import measure_memory
from trainer.config.schema import LossConfig
from trainer.models.functional import compute_loss
from trainer.models.head import Head
from trainer.objective import CrossEntropy

DEFAULT_CHUNK = LossConfig().chunk_tokens
CPU_SIZE, GPU_SIZE = (8192, 256, 8192), (16384, 4096, 128256)
"""Tokens, width and vocabulary; the latter are those of a micro-batch of Llama 8B."""
SLOWDOWN_PERCENT = 3.0
_GIB = 2**30


def main() -> int:
    """Measure, print the figures and return 1 if one exceeds its bound."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--tokens", type=int)
    parser.add_argument("--dim", type=int)
    parser.add_argument("--vocab", type=int)
    options = parser.parse_args()
    device = torch.device(options.device)
    sizes = GPU_SIZE if device.type == "cuda" else CPU_SIZE
    tokens, dim, vocab = (
        given or usual for given, usual in zip((options.tokens, options.dim, options.vocab), sizes, strict=True)
    )
    runs = make_runs(tokens, dim, vocab, device)
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(options.rounds + 1):
        for name, run in runs.items():
            began = synchronized_clock(device)
            run()
            seconds[name].append(synchronized_clock(device) - began)
    usual, *_ = times = {name: median(values[1:]) for name, values in seconds.items()}
    figures = []
    for name, run in runs.items():
        slower = (times[name] / times[usual] - 1) * 100
        bound = SLOWDOWN_PERCENT if name == describe(DEFAULT_CHUNK) else None
        figures.append(Figure(f"{name}: time", times[name] * 1000, "ms"))
        figures.append(Figure(f"{name}: slower than all logits", slower, "%", usual, bound))
        figures.append(Figure(f"{name}: memory at the peak", measure_memory(run, device).tensors / _GIB, "GiB"))
    print(report(figures))
    return int(any(figure.verdict == "FAIL" for figure in figures))


def make_runs(tokens: int, dim: int, vocab: int, device: torch.device) -> dict[str, Callable[[], None]]:
    """Return the ways of computing the loss, by name; torch's own over all logits is the first."""
    torch.manual_seed(1)
    head = Head(dim, vocab).to(device)
    hidden = torch.randn(tokens, dim, device=device, requires_grad=True)
    targets = torch.randint(vocab, (tokens,), device=device)
    precision = torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda")

    def run(objective: CrossEntropy | None) -> None:
        hidden.grad = head.weight.grad = None
        with precision:
            if objective is None:
                loss = compute_loss(head(hidden), targets)
            else:
                loss = head(hidden, objective=objective.from_hidden, targets=targets)
        loss.backward()

    chunks = sorted({0, 1024, 2048, DEFAULT_CHUNK, 8192})
    runs: dict[str, Callable[[], None]] = {"all logits": partial(run, None)}
    runs |= {describe(chunk): partial(run, CrossEntropy(chunk)) for chunk in chunks if chunk < tokens}
    return runs


def describe(chunk: int) -> str:
    """Return the name of a run."""
    return f"chunks of {chunk}" if chunk else "one chunk"


if __name__ == "__main__":
    sys.exit(main())
