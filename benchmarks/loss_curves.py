"""Compare the loss curves of a preset, in bf16 and in fp8, on real text with that of plain arithmetic; needs a GPU.

    python -m benchmarks.loss_curves [--steps 1000] [--rate 0.25] [--json FILE] [CASE ...]
    python -m benchmarks.loss_picture FILE ... --out loss-curves.svg

The text is the standard library of this Python, as bytes; no run reads a part of it twice. Runs of a case see the same
samples in the same order and start from the same weights, except for a second reference, which shows how far runs with
the same arithmetic are apart. The reference of gpt2-124m computes in fp32; that of llama-1b, for which fp32 would take
half an hour, has bf16 products with a residual stream, a loss and an update in fp32 by torch's own operations. Two
losses may differ by 1 % at the end: that of text that is not trained on, and the mean of the last tenth of the steps.

A preset's learning rate is meant for batches with hundreds of times as many tokens, so it is multiplied by --rate.
Runs that FILE has already, with the same steps and rate, are not measured again, so that time on a GPU can end between
two runs.
"""

from __future__ import annotations

import argparse
import sys
import sysconfig
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.figures import Figure, report
from benchmarks.gpu_cases import leave_out
from benchmarks.loss_figures import OTHER_SEED, REFERENCE, Run, check_text, compare_runs, read_runs, write_runs
from trainer.__main__ import main as train
from trainer.config.load import load
from trainer.data.index import read as read_index
from trainer.metrics.json_lines import read_lines

SAMPLES, TOKENS = 8, 512
"""Samples of a step and tokens of a sample: few, so that the runs of a case take minutes."""
HELD_OUT_SHARE = 0.05
SETTINGS = [
    "parallel.strategy=single",
    f"batch.size={SAMPLES}",
    f"batch.micro={SAMPLES}",
    "data.kind=tokens",
    f"data.seq_len={TOKENS}",
    "schedule.warmup=100",
    f"evaluation.share={HELD_OUT_SHARE}",
    "evaluation.samples=512",
    "metrics.every=1",
    "metrics.profile_every=0",
    "checkpoint.every=never",
]


@dataclass(frozen=True)
class Way:
    """A way to compute the steps of a case."""

    settings: tuple[str, ...] = ()
    without: str = ""
    """Optimisations that are left out, as in benchmarks/gpu_cases.py."""


PLAIN = "fused-loss+bf16-residual+joint-products+bias-sums+norm-gradients+adamw-kernel"
_FP32 = ("precision=fp32",)
_PRESET = {"bf16": Way(), "fp8 delayed": Way(("fp8.scaling=delayed",)), "fp8 tensor": Way(("fp8.scaling=tensor",))}
# For each preset the references, the way that the preset takes, and fp8 products with it.
CASES = {
    "gpt2-124m": {REFERENCE: Way(_FP32, PLAIN), OTHER_SEED: Way((*_FP32, "run.seed=2"), PLAIN), **_PRESET},
    "llama-1b": {REFERENCE: Way(without=PLAIN), OTHER_SEED: Way(("run.seed=2",), PLAIN), **_PRESET},
}


def main() -> int:
    """Train, print the figures and return 1 if a bound is missed."""
    options = _parse(sys.argv[1:])
    runs = read_runs(options.json)
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory() as scratch:
        tokens = Path(scratch) / "tokens"
        if train(["prepare", sysconfig.get_path("stdlib"), "--out", str(tokens)]):
            return 1
        text = sum(shard.tokens for shard in read_index(tokens).shards)
        check_text(text, HELD_OUT_SHARE, SAMPLES * TOKENS, options.steps)
        for name in options.cases or CASES:
            ways = runs.setdefault(name, {})
            for label, way in CASES[name].items():
                earlier = ways.get(label)
                if earlier and (len(earlier.losses), earlier.rate) == (options.steps, options.rate):
                    print(f"{name}, {label}: taken from {options.json}")
                    continue
                folder = Path(scratch) / name / label.replace(" ", "-")
                ways[label] = measure_run(name, way, options, tokens, folder)
                if options.json:
                    write_runs(options.json, runs, figures)
            figures += compare_runs(name, ways)
    print(report(figures))
    if options.json:
        write_runs(options.json, runs, figures)
    return int(any(figure.verdict == "FAIL" for figure in figures))


def measure_run(preset: str, way: Way, options: argparse.Namespace, tokens: Path, folder: Path) -> Run:
    """Train and return the losses."""
    rate = load(preset, []).optimizer.lr * options.rate
    steps = [f"steps={options.steps}", f"evaluation.every={options.steps}", f"optimizer.lr={rate}"]
    arguments = [preset, *SETTINGS, *steps, f"data.path={tokens}", f"run.folder={folder}", *way.settings]
    torch.compiler.reset()
    with leave_out(way.without):
        status = train(arguments)
    if status:
        raise SystemExit(f"{preset} ended with status {status}; its settings: {' '.join(arguments)}")
    records = folder / "metrics"
    losses = [line["loss"] for line in read_lines(records / "rank-00000.jsonl") if "loss" in line]
    return Run(losses, read_lines(records / "evaluation-00000.jsonl")[-1]["loss"], options.rate)


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m benchmarks.loss_curves")
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"of {', '.join(CASES)}; all if none is given")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--rate", type=float, default=0.25, help="factor of the preset's learning rate")
    parser.add_argument("--json", type=Path, help="file for figures and curves")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
