"""Compare the loss curves of a preset, in bf16 and in fp8, on real text with that of plain arithmetic; needs a GPU.

    python -m benchmarks.loss_curves [--steps 1000] [--json FILE] [CASE ...]
    python -m benchmarks.loss_picture FILE ... --out loss-curves.svg

The text is the standard library of this Python, as bytes. Runs of a case see the same samples in the same order and
start from the same weights. The reference of gpt2-124m computes in fp32; that of llama-1b, for which fp32 would take
half an hour, has bf16 products with a residual stream, a loss and an update in fp32 by torch's own operations. The mean
loss of the last tenth of the steps may differ by 1 %. Curves that FILE has already are not measured again, so that time
on a GPU can end between two runs.
"""

from __future__ import annotations

import argparse
import json
import sys
import sysconfig
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean

import torch

from benchmarks.figures import Figure, report
from benchmarks.gpu_cases import leave_out
from trainer.__main__ import main as train
from trainer.metrics.json_lines import read_lines

BOUND_PERCENT = 1.0
SETTINGS = [
    "parallel.strategy=single",
    "batch.size=8",
    "batch.micro=8",
    "data.kind=tokens",
    "data.seq_len=1024",
    "schedule.warmup=100",
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


PLAIN = "fused-loss+bf16-residual+joint-products+adamw-kernel"
REFERENCE = "reference"
_PRESET, _FP8 = Way(), Way(("fp8.scaling=delayed",))
# For each preset the reference, the way that the preset takes, and fp8 products with it.
CASES = {
    "gpt2-124m": {REFERENCE: Way(("precision=fp32",), PLAIN), "preset": _PRESET, "fp8": _FP8},
    "llama-1b": {REFERENCE: Way(without=PLAIN), "preset": _PRESET, "fp8": _FP8},
}


def main() -> int:
    """Train, print the figures and return 1 if a bound is missed."""
    options = _parse(sys.argv[1:])
    curves: dict[str, dict[str, list[float]]] = read_curves(options.json)
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory() as scratch:
        tokens = Path(scratch) / "tokens"
        if train(["prepare", sysconfig.get_path("stdlib"), "--out", str(tokens)]):
            return 1
        for name in options.cases or CASES:
            ways = curves.setdefault(name, {})
            for label, way in CASES[name].items():
                if len(ways.get(label, ())) == options.steps:
                    print(f"{name}, {label}: taken from {options.json}")
                else:
                    folder = Path(scratch) / name / label
                    ways[label] = measure_losses(name, way, options.steps, tokens, folder)
                if options.json:
                    options.json.write_text(json.dumps({"curves": curves}))
            figures += compare(name, ways)
    print(report(figures))
    if options.json:
        options.json.write_text(json.dumps({"figures": [asdict(figure) for figure in figures], "curves": curves}))
    return int(any(figure.verdict == "FAIL" for figure in figures))


def read_curves(path: Path | None) -> dict[str, dict[str, list[float]]]:
    """Return the curves that an earlier call has written to the file, if there is one."""
    if path is None or not path.exists():
        return {}
    curves: dict[str, dict[str, list[float]]] = json.loads(path.read_text())["curves"]
    return curves


def measure_losses(preset: str, way: Way, steps: int, tokens: Path, folder: Path) -> list[float]:
    """Train and return the loss of each step."""
    arguments = [preset, *SETTINGS, f"steps={steps}", f"data.path={tokens}", f"run.folder={folder}", *way.settings]
    torch.compiler.reset()
    with leave_out(way.without):
        status = train(arguments)
    if status:
        raise SystemExit(f"{preset} ended with status {status}; its settings: {' '.join(arguments)}")
    return [line["loss"] for line in read_lines(folder / "metrics" / "rank-00000.jsonl") if "loss" in line]


def compare(name: str, curves: dict[str, list[float]]) -> list[Figure]:
    """Return the mean loss of the last tenth of the steps in each way, and how far it is from the reference."""
    last = max(1, len(curves[REFERENCE]) // 10)
    means = {label: fmean(losses[-last:]) for label, losses in curves.items()}
    usual = means.pop(REFERENCE)
    figures = [Figure(f"{name}: loss after {len(curves[REFERENCE])} steps, {REFERENCE}", usual, "")]
    for label, mean in means.items():
        difference = abs(mean / usual - 1) * 100
        figures += [
            Figure(f"{name}: loss after {len(curves[label])} steps, {label}", mean, "", f"{REFERENCE} {usual:.4f}"),
            Figure(f"{name}: difference of {label}", difference, "%", f"mean of {last} steps", BOUND_PERCENT),
        ]
    return figures


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m benchmarks.loss_curves")
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"of {', '.join(CASES)}")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--json", type=Path, help="file for figures and curves")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
