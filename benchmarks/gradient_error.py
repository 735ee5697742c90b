"""Measure on one GPU how far gradients are from those in fp32, with and without kernels that sum some of them.

    python -m benchmarks.gradient_error [--seeds 8] [--preset gpt2-124m] [key.sub=value ...]

Each seed draws other weights and tokens. The error of a gradient is the norm of its difference from that in fp32, of
torch's own operations, relative to the latter's norm. It is averaged over all weights; the biases of keys are left out,
because their gradients are zero. Both ways see the same weights and tokens, so the difference of their errors, with its
standard error over the seeds, tells a loss of precision from chance.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import cast

import torch

from benchmarks.figures import Figure, report
from benchmarks.gpu_cases import DEVICE, leave_out, make_step
from trainer.config.load import load
from trainer.config.models import DecoderConfig
from trainer.models.init import fill
from trainer.objective import CrossEntropy
from trainer.parallel.gradients import to_local
from trainer.step import Step

SAMPLES = 8
KERNELS = "bias-sums+norm-gradients"
ZERO_GRADIENTS = ".k.bias"
PLAIN = ["parallel.strategy=single", "precision=fp32", "compile.mode=none"]


@dataclass(frozen=True)
class Errors:
    """Relative errors of the gradients of one seed."""

    mean: float
    largest: float


def main() -> int:
    """Measure and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--preset", default="gpt2-124m")
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("overrides", nargs="*", metavar="key.sub=value")
    options = parser.parse_args()
    seeds = range(1, options.seeds + 1)
    exact = differentiate(options.preset, PLAIN, seeds, "fused-loss+adamw-kernel")
    ways = {
        label: [compare(own, reference) for own, reference in zip(gradients, exact, strict=True)]
        for label, gradients in (
            ("with the kernels", differentiate(options.preset, options.overrides, seeds, "")),
            ("without them", differentiate(options.preset, options.overrides, seeds, KERNELS)),
        )
    }
    print(report(list_figures(options.preset, ways)))
    return 0


def differentiate(preset: str, settings: list[str], seeds: range, without: str) -> list[dict[str, torch.Tensor]]:
    """Return the gradients of the weights for each seed, on the host."""
    config = load(preset, [*settings, f"batch.size={SAMPLES}", f"batch.micro={SAMPLES}"])
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    torch.compiler.reset()
    with leave_out(without):
        step, model = make_step(config), cast(DecoderConfig, config.model)
        return [differentiate_seed(step, model.vocab_size, model.seq_len, seed) for seed in seeds]


def differentiate_seed(step: Step, vocabulary: int, length: int, seed: int) -> dict[str, torch.Tensor]:
    """Return the gradients for weights and tokens of a seed."""
    fill(step.engine.modules, seed=seed, device=DEVICE)
    generator = torch.Generator(DEVICE).manual_seed(seed)
    tokens = torch.randint(vocabulary, (SAMPLES, length + 1), device=DEVICE, generator=generator)
    batch = {"inputs": tokens[:, :-1].contiguous(), "targets": tokens[:, 1:].contiguous()}
    step.engine.forward_backward(batch, CrossEntropy(4096), SAMPLES, None)
    gradients = {}
    for name, value in step.engine.named_parameters():
        gradients[name] = to_local(value.grad).float().cpu()
        value.grad = None
    return gradients


def compare(own: dict[str, torch.Tensor], exact: dict[str, torch.Tensor]) -> Errors:
    """Return the relative errors of gradients."""
    errors = [
        float((own[name] - gradient).norm() / gradient.norm())
        for name, gradient in exact.items()
        if not name.endswith(ZERO_GRADIENTS)
    ]
    return Errors(fmean(errors), max(errors))


def list_figures(preset: str, ways: dict[str, list[Errors]]) -> list[Figure]:
    """Return the errors of both ways, averaged over the seeds, and their difference."""
    figures = []
    for part in ("mean", "largest"):
        values = {label: [getattr(errors, part) for errors in way] for label, way in ways.items()}
        for label, errors in values.items():
            spread = f"{min(errors):.5f} to {max(errors):.5f}"
            figures.append(Figure(f"{preset}: {part} error {label}", round(fmean(errors), 6), "", spread))
        differences = [own - plain for own, plain in zip(*values.values(), strict=True)]
        spread = f"standard error {stdev(differences) / len(differences) ** 0.5:.5f}"
        figures.append(Figure(f"{preset}: {part} error, difference", round(fmean(differences), 6), "", spread))
    return figures


if __name__ == "__main__":
    raise SystemExit(main())
