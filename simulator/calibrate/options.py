"""Options of `calibrate`, parsed without torch so that `--help` works everywhere."""

from __future__ import annotations

import argparse
from pathlib import Path

DEFAULT_FIGURE_S = 0.2
"""Seconds to spend on each figure; a busy machine needs more."""
ABOUT = """Measure this machine or cluster with the trainer's code (matrix products, memory, layers,
collectives, checkpoints), and write a profile that predictions can use.

This needs torch, which every node of a cluster has:
  make submit STACK=... JOB=slurm/jobs/calibrate.sbatch
On another machine, create an environment with the trainer's packages (.venv has no torch):
  python3 -m venv .venv-torch && .venv-torch/bin/pip install '.[trainer,simulator]'
  .venv-torch/bin/python -m simulator calibrate --out profile.json
  .venv-torch/bin/torchrun --nproc-per-node 4 -m simulator.calibrate --out profile.json   # 4 ranks"""


def parse_options(arguments: list[str], program: str = "python -m simulator.calibrate") -> argparse.Namespace:
    """Parse the command line; exit with a usage message that names the program if it is invalid."""
    parser = argparse.ArgumentParser(program, description=ABOUT, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("profile.json"),
        help="file to write, on a filesystem that all nodes share (default: %(default)s)",
    )
    parser.add_argument("--stack", default="", help="name of the measured stack, recorded in the profile")
    parser.add_argument(
        "--device", choices=("auto", "cpu", "cuda"), default="auto", help="device to measure (default: %(default)s)"
    )
    parser.add_argument(
        "--seconds", type=float, default=DEFAULT_FIGURE_S, help="seconds per measurement (default: %(default)s)"
    )
    return parser.parse_args(arguments)
