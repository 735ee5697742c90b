"""Resolve `parallel.strategy: auto` of a training job with the simulator before the job is submitted.

The simulator runs as a separate process, so that clusters it does not support never import it.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
from itertools import pairwise

from infra.home import StackHome
from infra.targets.target import Target
from muster.commands import screen

TRAINER_COMMAND = "-m trainer"
_DIRECTIVE = "#SBATCH"
AUTO = "parallel.strategy=auto"
LEFT_TO_TRAINER = "layout: left to the trainer, which chooses by the available memory"
NOTHING_TO_CHOOSE = "nothing to choose"
TIMEOUT_S = 60.0


def choose_layout(stack: StackHome, target: Target, job: str, arguments: list[str]) -> list[str]:
    """Return the job's arguments with an explicit layout; unchanged if there is nothing to choose."""
    question = build_question(job, arguments)
    if question is None:
        return arguments
    if not target.capabilities.rents_machines:
        if AUTO in arguments:
            screen.say(f"{LEFT_TO_TRAINER}: the simulator does not know the machines of target {target.name}")
        return arguments
    line = [sys.executable, "-m", "simulator", "auto", "--stack", str(stack.file), *question]
    try:
        done = subprocess.run(line, cwd=stack.home.repo, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        screen.say(f"{LEFT_TO_TRAINER}: the simulator did not answer within {TIMEOUT_S:.0f} s")
        return arguments
    chosen, message = parse_answer(done, arguments)
    if message:
        screen.say(message)
    return chosen


def add_options(job: str, options: list[str]) -> str:
    """Return the job file with sbatch's options as directives after its own, because the last directive wins."""
    lines = job.splitlines()
    end = _count_header_lines(lines)
    return "\n".join([*lines[:end], *(f"#SBATCH {option}" for option in options), *lines[end:]])


def build_question(job: str, arguments: list[str]) -> list[str] | None:
    """Return the simulator's arguments; None if the job does not train or its number of nodes is not fixed."""
    nodes = read_directive(job, "nodes", "N")
    if TRAINER_COMMAND not in job or not arguments or not nodes.isdecimal():
        return None
    partition = read_directive(job, "partition", "p")
    return ["--nodes", nodes, *(["--group", partition] if partition else []), "--", *arguments]


def parse_answer(done: subprocess.CompletedProcess[str], arguments: list[str]) -> tuple[list[str], str]:
    """Return the job's arguments and the message for the user from the simulator's output."""
    message = (done.stderr.strip().splitlines() or [""])[-1]
    if done.returncode != 0:
        return arguments, f"{LEFT_TO_TRAINER}: {message.removeprefix('simulator: ')}"
    return shlex.split(done.stdout), "" if message.startswith(NOTHING_TO_CHOOSE) else f"layout: {message}"


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
