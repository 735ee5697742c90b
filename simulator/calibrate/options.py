"""Options of `calibrate`, parsed without torch so that `--help` works everywhere."""

from __future__ import annotations

import argparse
from pathlib import Path

DEFAULT_FIGURE_S = 0.2
"""Seconds to spend on each figure; a busy machine needs more."""
ABOUT = """Measure matrix products, memory, layers, collectives and checkpoint saves of this machine or cluster
with the trainer's code, and write a profile that predictions can use.

This needs torch. On a cluster of muster every node has it:
  make submit STACK=... JOB=slurm/jobs/calibrate.sbatch
On your own machine, in an environment with the trainer's packages (.venv has no torch):
  python3 -m venv .venv-torch && .venv-torch/bin/pip install '.[trainer,simulator]'
  .venv-torch/bin/python -m simulator calibrate --out profile.json
  .venv-torch/bin/torchrun --nproc-per-node 4 -m simulator.calibrate --out profile.json   # 4 ranks"""


def parse_options(arguments: list[str]) -> argparse.Namespace:
    """Parse the command line; exit with a usage message if it is invalid."""
    parser = argparse.ArgumentParser(
        "python -m simulator calibrate", description=ABOUT, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--out", type=Path, default=Path("profile.json"), help="file on a filesystem that all nodes share (%(default)s)"
    )
    parser.add_argument("--stack", default="", help="name of the stack that is measured, recorded in the profile")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--seconds", type=float, default=DEFAULT_FIGURE_S, help="seconds for each figure (%(default)s)")
    return parser.parse_args(arguments)
