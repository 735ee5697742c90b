"""What was refused, on stderr: within the width of a terminal, one line for each problem in a log."""

from __future__ import annotations

import os
import sys

from simulator import terminal
from trainer.config.errors import ConfigError

BAD_INPUT = 2
ENDLESS = 1_000_000


def refused(bad: ConfigError, *, whole: bool = False) -> int:
    """The exit status. `whole`: a line for each problem also on a terminal, for programs that read it."""
    wrap = not whole and (sys.stderr.isatty() or "COLUMNS" in os.environ)
    columns = terminal.terminal_width() if wrap else ENDLESS
    for problem in bad.problems:
        print(terminal.format_problem(problem, columns), file=sys.stderr)
    return BAD_INPUT
