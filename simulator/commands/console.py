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


RED_CROSS = "\033[31m✗\033[0m"


@contextmanager
def show_progress(first: str) -> Iterator[Callable[[str], None]]:
    """Show `first` as a temporary line on a terminal, and yield a function that replaces it; print nothing in a log."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console  # noqa: PLC0415  # nodes have no rich

    with Console(stderr=True).status(first) as status:
        yield status.update


def print_problems(error: ConfigError, *, one_line_each: bool = False) -> int:
    """Print the problems to stderr and return the exit status.

    Through `muster` they look like its errors. Otherwise they are wrapped on a terminal; in a log, or with
    `one_line_each`, each problem is one line for programs to read.
    """
    is_terminal = sys.stderr.isatty()
    as_muster = terminal.is_muster() and not one_line_each
    wrap = not one_line_each and (is_terminal or "COLUMNS" in os.environ)
    columns = terminal.terminal_width() if wrap else UNLIMITED_COLUMNS
    for problem in error.problems:
        text = (terminal.format_muster_problem if as_muster else terminal.format_problem)(problem, columns)
        if as_muster and is_terminal and not os.environ.get("NO_COLOR"):
            text = text.replace("✗", RED_CROSS, 1)
        print(text, file=sys.stderr)
    return BAD_INPUT
