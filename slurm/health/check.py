"""The model of a health check: a command, and a function that compares its output with what the node should have."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Literal

SLURMD_LIMIT_S = 50
"""Time after which slurmd kills the health program: HealthCheckTimeout, and less than the 60 s of 24.11, which has no
such setting."""
Context = Literal["gate", "prolog", "periodic", "failed-job", "maintenance"]
"""When a check runs: before slurmd registers the node for the first time since boot, before a job, every minute, after
a failed job, and while an idle node is in a maintenance reservation."""
Blame = Literal["node", "user", "unknown"]
"""Who causes a problem: this node, a user, or something that the node cannot tell apart, such as a file server."""
Remedy = Literal["rounds", "reset", "reboot", "replace"]
"""What ends a drain: rounds without a problem, a reset of the GPUs, a reboot, another machine."""


@dataclass(frozen=True)
class Expected:
    """What this node should have; bootstrap writes it from the inventory."""

    gpus: int = 0
    nvlinks: int = 0
    """Active NVLink links of each GPU; 0 if the machine has none."""
    efa: int = 0
    """Number of EFA devices."""
    rdma: Mapping[str, float] = field(default_factory=dict)
    """Gb/s of each InfiniBand or RoCE port of the fabric when the node was set up, by its name such as `mlx5_0:1`."""
    ultraserver: Sequence[str] = ()
    """Names of all nodes of this node's UltraServer, itself included; empty outside UltraServers."""
    mounts: Sequence[str] = ()
    controller: str = ""
    """Address of the controller, whose clock is the right one; empty to compare with none."""
    software: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Version of each component when the node was set up, and the file that shows it."""
    disabled: Sequence[str] = ()
    """Names of checks that are disabled on this cluster."""
    group: str = ""
    """Node group of this node, whose name is also that of a partition."""
    max_drained_percent: int = 100
    """Share of the group's running nodes that the checks may have drained at a time."""

    @staticmethod
    def read(path: Path) -> Expected:
        content = json.loads(path.read_text(encoding="utf-8"))
        return Expected(**{key.name: content[key.name] for key in fields(Expected) if key.name in content})


@dataclass(frozen=True)
class Check:
    """One health check."""

    name: str
    about: str
    """What holds on a healthy node."""
    applies: Callable[[Expected], bool]
    command: Callable[[Expected], str]
    """Shell script whose output is judged; a non-zero exit code is a problem by itself."""
    judge: Callable[[str, Expected], list[str]]
    """Return the problems that the output shows."""
    contexts: tuple[Context, ...]
    """When it runs; every job waits for the checks of the prolog."""
    limit_s: float
    """Time after which the command is killed, which is a problem too."""
    blame: Blame
    """Who causes what it reports; what a user causes never drains a node."""
    remedies: tuple[Remedy, ...]
    """What ends a drain for its problems, in the order in which it is tried; empty if it never drains."""


@dataclass(frozen=True)
class HealthProblem:
    """Something that a check reports."""

    check: str
    text: str
    blame: Blame = "node"

    def __str__(self) -> str:
        # On one line and without the separator of problems: reasons are parsed again.
        return f"{self.check}: {' '.join(self.text.replace(';', ',').split())}"


@dataclass(frozen=True)
class Answer:
    """The result of a check's command."""

    output: str = ""
    error: str = ""
    code: int | None = None
    """Exit code; None if the command did not end in time."""
    after_s: float = 0.0
    """Time limit of the command in seconds."""


def judge_answer(check: Check, answer: Answer, expected: Expected) -> list[HealthProblem]:
    """Return the problems of one check; no answer is a problem, because broken machines often hang."""
    return [HealthProblem(check.name, text, check.blame) for text in _list_problems(check, answer, expected)]


def _list_problems(check: Check, answer: Answer, expected: Expected) -> list[str]:
    if answer.code is None:
        # Scripts write to stderr what they wait for.
        return [f"no answer within {answer.after_s:g} s{_quote_last_line(answer.error)}"]
    if answer.code != 0:
        return [f"exit code {answer.code}{_quote_last_line(answer.error.strip() or answer.output)}"]
    return check.judge(answer.output, expected)


def _quote_last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return f", {lines[-1].strip()}" if lines else ""
