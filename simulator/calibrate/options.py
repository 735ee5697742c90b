"""Options of `calibrate`; read without torch, so that `--help` answers everywhere."""

from __future__ import annotations

import argparse
from pathlib import Path

LEAST_S = 0.2
"""Time for one figure; a busy machine needs more."""
ABOUT = """Measures products, memory, layers, collectives and saves of this machine or cluster through the
trainer, and writes a profile that predictions go by.

It needs torch. On a cluster of muster every node has it:
  make submit STACK=... JOB=slurm/jobs/calibrate.sbatch
On a machine of your own, in an environment with the trainer's packages (.venv has no torch):
  python3 -m venv .venv-torch && .venv-torch/bin/pip install '.[trainer,simulator]'
  .venv-torch/bin/python -m simulator calibrate --out profile.json
  .venv-torch/bin/torchrun --nproc-per-node 4 -m simulator.calibrate --out profile.json   # 4 ranks"""


def arguments(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "python -m simulator calibrate", description=ABOUT, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--out", type=Path, default=Path("profile.json"), help="on a filesystem of all nodes (%(default)s)"
    )
    parser.add_argument("--stack", default="", help="whose machines these are, for the record")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--seconds", type=float, default=LEAST_S, help="for each figure (%(default)s)")
    return parser.parse_args(words)
