"""Lists of jobs with their names, which users choose: they may want to forge the rows of other jobs.

No other module lists names. It is apart from `jobs` because it reads a file next to it: the programs of the nodes run
from archives, in which there are no files.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from slurm.control.jobs import MAX_LISTED_CHARS

_LIST_NAMED_JOBS = Path(__file__).with_name("list_named_jobs.py").read_text(encoding="utf-8")


def list_named_jobs(columns: str, *options: str, max_chars: int = 0) -> str:
    """Return the shell command that prints columns of squeue and then the name for each job, one line per job.

    The name comes last because it may contain the separator. `split_rows` splits the output. With `max_chars`, jobs
    that exceed it are counted in a last line such as `+250`.
    """
    return shlex.join(["python3", "-c", _LIST_NAMED_JOBS, str(max_chars), columns, *options])


def split_rows(text: str) -> list[str]:
    """Return the lines of a command; unlike splitlines, end them only where the command did."""
    return text.removesuffix("\n").split("\n") if text else []


@dataclass(frozen=True)
class RunningJob:
    """A job that holds nodes."""

    id: str
    user: str
    name: str


@dataclass(frozen=True)
class RunningJobs:
    """The jobs that hold nodes."""

    listed: tuple[RunningJob, ...] = ()
    more: int = 0
    """Number of jobs that are not in `listed`."""


LIST_RUNNING = list_named_jobs("%i|%u", "-t", "R,S,CF", max_chars=MAX_LISTED_CHARS)


def parse_running(text: str) -> RunningJobs:
    """Parse LIST_RUNNING; skip lines of another form."""
    lines = split_rows(text)
    rows = [line.split("|", 2) for line in lines]
    more = int(lines[-1][1:]) if lines and re.fullmatch(r"\+[0-9]+", lines[-1]) else 0
    return RunningJobs(tuple(RunningJob(*row) for row in rows if len(row) == len(fields(RunningJob))), more)


@dataclass(frozen=True)
class ListedJob:
    """A job in the queue, as squeue prints it."""

    id: str
    user: str
    partition: str
    state: str
    time: str
    nodes: str
    """Number of nodes."""
    where: str
    """The nodes of the job, or the reason why it is waiting."""
    name: str


LIST_JOBS = list_named_jobs("%i|%u|%P|%T|%M|%D|%R")


def parse_jobs(lines: Sequence[str]) -> tuple[ListedJob, ...]:
    """Parse LIST_JOBS; skip lines of another form."""
    last = len(fields(ListedJob)) - 1
    return tuple(ListedJob(*line.split("|", last)) for line in lines if line.count("|") >= last)
