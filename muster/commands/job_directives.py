"""Read and add the directives of a job file, its lines `#SBATCH --option`, as sbatch reads them."""

from __future__ import annotations

import shlex
from itertools import pairwise

_DIRECTIVE = "#SBATCH"


def read_directive(job: str, long: str, short: str) -> str:
    """Return the value of the last directive with this name, as sbatch does; empty if there is none."""
    value = ""
    for word, following in pairwise([*list_directives(job), ""]):
        if word in (f"--{long}", f"-{short}"):
            value = following
        elif word.startswith(f"--{long}="):
            value = word.partition("=")[2]
        elif word.startswith(f"-{short}") and not word.startswith("--"):
            value = word[2:]
    return value


def list_directives(job: str) -> list[str]:
    """Return the words of the directives; sbatch reads none after the first command, which may write another job."""
    lines = job.splitlines()
    header = lines[: _count_header_lines(lines)]
    return [word for line in header if line.startswith(_DIRECTIVE) for word in _split(line.removeprefix(_DIRECTIVE))]


def add_options(job: str, options: list[str]) -> str:
    """Return the job file with sbatch's options as directives after its own, because the last directive wins."""
    lines = job.splitlines()
    end = _count_header_lines(lines)
    return "\n".join([*lines[:end], *(f"{_DIRECTIVE} {option}" for option in options), *lines[end:]])


def _count_header_lines(lines: list[str]) -> int:
    """Return the number of lines before the first one that is neither empty nor a comment."""
    texts = (number for number, line in enumerate(lines) if line.strip() and not line.lstrip().startswith("#"))
    return next(texts, len(lines))


def _split(directive: str) -> list[str]:
    try:
        return shlex.split(directive, comments=True)
    except ValueError:
        # A quote without its end, which sbatch refuses.
        return []
