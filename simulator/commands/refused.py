"""What was refused, on stderr: within the width of a terminal, one line for each problem in a log."""

from __future__ import annotations

import os
import sys

from simulator.search import fitted
from trainer.config.problem import ConfigError

BAD_INPUT = 2
ENDLESS = 1_000_000


def refused(bad: ConfigError) -> int:
    """The exit status."""
    columns = fitted.width() if sys.stderr.isatty() or "COLUMNS" in os.environ else ENDLESS
    for problem in bad.problems:
        print(fitted.problem(problem, columns), file=sys.stderr)
    return BAD_INPUT
