"""`parallel.strategy: auto` of a training job, settled by the simulator before it is submitted.

The simulator is a program of its own here: what is settled are words, and a cluster it does not know needs none of it.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys

from infra.home import StackHome
from infra.targets.target import Target
from muster.commands import screen

TRAINS = "-m trainer"
AUTO = "parallel.strategy=auto"
LEFT_TO_TRAINER = "layout: left to the trainer, which chooses by the memory it finds"
NOTHING = "nothing to choose"
TIMEOUT_S = 60.0


def choose_layout(stack: StackHome, target: Target, job: str, arguments: list[str]) -> list[str]:
    """The words for a job file with this text; those that were given, where there is nothing to settle."""
    words = simulator_arguments(job, arguments)
    if words is None:
        return arguments
    if not target.capabilities.rents_machines:
        if AUTO in arguments:
            screen.say(f"{LEFT_TO_TRAINER}: the simulator does not know the machines of target {target.name}")
        return arguments
    line = [sys.executable, "-m", "simulator", "auto", "--stack", str(stack.file), *words]
    try:
        done = subprocess.run(line, cwd=stack.home.repo, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        screen.say(f"{LEFT_TO_TRAINER}: the simulator did not answer within {TIMEOUT_S:.0f} s")
        return arguments
    chosen, said = parse_answer(done, arguments)
    if said:
        screen.say(said)
    return chosen


def append_options(job: str, options: list[str]) -> str:
    """The file as if it had said itself what sbatch is given: that weighs more."""
    return "\n".join([job, *(f"#SBATCH {option}" for option in options)])


def simulator_arguments(job: str, arguments: list[str]) -> list[str] | None:
    """What the simulator is asked; None where the job does not train, or its nodes are not a fixed number."""
    nodes = _directive(job, "nodes", "N")
    if TRAINS not in job or not arguments or not nodes.isdecimal():
        return None
    partition = _directive(job, "partition", "p")
    return ["--nodes", nodes, *(["--group", partition] if partition else []), "--", *arguments]


def parse_answer(done: subprocess.CompletedProcess[str], arguments: list[str]) -> tuple[list[str], str]:
    """The words for the job, and what a person is told."""
    said = (done.stderr.strip().splitlines() or [""])[-1]
    if done.returncode != 0:
        return arguments, f"{LEFT_TO_TRAINER}: {said.removeprefix('simulator: ')}"
    return shlex.split(done.stdout), "" if said.startswith(NOTHING) else f"layout: {said}"


def _directive(job: str, long: str, short: str) -> str:
    """Of the last such line, as sbatch reads them."""
    found = re.findall(rf"^#SBATCH\s+(?:--{long}[= ]|-{short} ?)\s*(\S+)", job, re.MULTILINE)
    return found[-1] if found else ""
