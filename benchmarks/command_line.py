"""Time `muster --help` against an interpreter that imports nothing of ours.

    .venv/bin/python -m benchmarks.command_line

Both run in turns, each in a process of its own; the medians are compared.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from benchmarks.figures import Figure, report

ROUNDS = 11
HELP = (str(Path(sys.executable).with_name("muster")), "--help")
BARE = (sys.executable, "-c", "")
BOUND_S = 0.3


def main() -> int:
    """Measure, print the figures and return 1 if the bound is exceeded."""
    rounds = [(_time(HELP), _time(BARE)) for _ in range(ROUNDS)]
    help_s, bare_s = (median(seconds) for seconds in zip(*rounds, strict=True))
    figures = [
        Figure("interpreter that imports nothing", bare_s),
        Figure("muster --help", help_s, reference=f"interpreter {bare_s:.2f} s", at_most=BOUND_S),
    ]
    print(report(figures))
    return int(any(figure.verdict == "FAIL" for figure in figures))


def _time(command: Sequence[str]) -> float:
    began = time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - began


if __name__ == "__main__":
    sys.exit(main())
