"""One line for whoever watches; the next takes its place, and nothing of it goes into a log."""

from __future__ import annotations

import sys


def progress(text: str) -> None:
    """Empty takes the line away."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)
