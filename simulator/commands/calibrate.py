"""`python -m simulator calibrate`: measures this machine; torchrun starts `simulator.calibrate` on many ranks."""

from __future__ import annotations

import sys


def main(words: list[str]) -> int:
    try:
        from simulator.calibrate.__main__ import main as measure  # noqa: PLC0415  # torch, only now
    except ModuleNotFoundError as missing:
        message = f"{missing.name} is not installed; allowed: an environment with the trainer's packages"
        print(f"simulator: calibrate: {message}: pip install '.[trainer,simulator]'", file=sys.stderr)
        return 2
    return measure(words)
