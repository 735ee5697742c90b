"""Progress on a terminal and error messages of the commands."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from simulator import terminal
from trainer.config.errors import ConfigError

BAD_INPUT = 2
"""Exit status for invalid input."""
UNLIMITED_COLUMNS = 1_000_000


@contextmanager
def show_progress() -> Iterator[Callable[[str], None]]:
    """Yield a function that shows a temporary line of progress on a terminal, and nothing in a log."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console  # noqa: PLC0415  # nodes have no rich

    with Console(stderr=True).status("") as status:
        yield status.update


def print_problems(error: ConfigError, *, one_line_each: bool = False) -> int:
    """Print the problems to stderr and return the exit status.

    On a terminal they are wrapped; in a log, or with `one_line_each`, each problem is one line for programs to read.
    """
    wrap = not one_line_each and (sys.stderr.isatty() or "COLUMNS" in os.environ)
    columns = terminal.terminal_width() if wrap else UNLIMITED_COLUMNS
    for problem in error.problems:
        print(terminal.format_problem(problem, columns), file=sys.stderr)
    return BAD_INPUT
