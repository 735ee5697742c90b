"""Checks that rounds do not run, such as long diagnoses: after a remedy they run again before their node returns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from slurm.health import dcgm
from slurm.health.check import Check, Expected, HealthProblem, judge_answer
from slurm.health.drain import parse_reason
from slurm.health.registry import CHECKS, run_scripts
from slurm.health.remedy import Attempts, is_over, select_recent

# Time beyond the limit of the slowest check after which a repetition is taken for lost.
_MARGIN_S = 60.0


@dataclass(frozen=True)
class Recheck:
    """The last run of such checks on this node."""

    at: float = 0.0
    passed: bool | None = False
    """None while they run."""

    def is_running(self, now: float) -> bool:
        return self.passed is None and now - self.at < max(check.limit_s for check in CHECKS) + _MARGIN_S

    def is_due(self, attempts: Attempts, now: float) -> bool:
        """Return whether a remedy has taken effect since."""
        recent = select_recent(attempts, now)
        done = all(is_over(remedy, attempt, now) for remedy, attempt in recent.items())
        return bool(recent) and done and max(attempt["at"] for attempt in recent.values()) > self.at


def render_start(node: str, names: Iterable[str]) -> list[str]:
    """Return the command that repeats checks of a node, detached: slurmd ends the health program before they end."""
    options = ["--quiet", "--collect", "--unit=muster-recheck", f"--setenv=SLURMD_NODENAME={node}"]
    return ["systemd-run", *options, "python3", "/etc/muster/health.pyz", "recheck", *dict.fromkeys(names)]


def list_beyond_rounds() -> dict[str, Check]:
    """Return by name the checks that no round runs."""
    return {check.name: check for check in CHECKS if not {"gate", "periodic"} & set(check.contexts)}


def list_pending(reason: str, problems: Sequence[HealthProblem], expected: Expected) -> list[HealthProblem]:
    """Return the problems of a reason that this round could not see, and that count until their checks pass."""
    reported = {problem.check for problem in problems}
    return [
        problem
        for problem in parse_reason(reason)
        if problem.check in list_beyond_rounds() and problem.check not in {*reported, *expected.disabled}
    ]


def run_again(names: Sequence[str], expected: Expected) -> bool:
    """Run these checks and return whether all of them have a result, and a good one."""
    checks = [check for name, check in list_beyond_rounds().items() if name in names]
    # Otherwise level 2 would not run for an hour after it failed.
    Path(dcgm.AFTER_FAILURE_MARK).unlink(missing_ok=True)
    answers = run_scripts([(check.command(expected), check.limit_s) for check in checks])
    return bool(checks) and all(
        dcgm.has_result(answer.output) and not judge_answer(check, answer, expected)
        for check, answer in zip(checks, answers)  # noqa: B905  # The node's own Python may be 3.9.
    )
