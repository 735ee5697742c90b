"""Resolve `parallel.strategy: auto` of a training job with the simulator before the job is submitted.

The simulator runs as a separate process, so that clusters it does not support never import it.
"""

from __future__ import annotations

import shlex
import subprocess
import sys

from infra.home import StackHome
from infra.targets.target import Target
from muster.commands import screen
from muster.commands.job_directives import read_directive

TRAINER_COMMAND = "-m trainer"
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
