"""`python -m simulator calibrate`: measures this machine; torchrun starts `simulator.calibrate` on many ranks."""

from __future__ import annotations

import sys

from simulator.calibrate.options import arguments


def main(words: list[str]) -> int:
    arguments(words)  # help, and words that cannot be meant, before torch is asked for
    try:
        from simulator.calibrate.__main__ import main as measure  # noqa: PLC0415  # torch, only now
    except ModuleNotFoundError as missing:
        message = f"{missing.name} is not installed; allowed: an environment with the trainer's packages"
        print(f"simulator: calibrate: {message}; `calibrate --help` has the commands", file=sys.stderr)
        return 2
    return measure(words)
