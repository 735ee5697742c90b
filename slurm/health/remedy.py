"""What to try on a broken node before it gets another machine: a reset of its GPUs, then a reboot."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from slurm.health import dcgm
from slurm.health.check import Check, HealthProblem, Remedy

LADDER: tuple[Remedy, ...] = ("reset", "reboot")
RESET_S = 120.0
"""Time after which a problem that is still there was not solved by a reset: two rounds."""
REBOOT_S = 1200.0
"""Time after which a node that has not rebooted will not."""
FORGET_S = 86400.0
"""A remedy that was tried in this time is not tried again: the same fault came back."""

Attempts = Mapping[str, Mapping[str, Any]]
"""Time of each remedy that was tried, and whether it has taken effect."""

# Everything that keeps the GPUs open has to stop. On machines with NVSwitch only all GPUs can be reset, together.
RESET_SCRIPT = f"""\
units=
for unit in nvidia-persistenced nvidia-dcgm; do
  if systemctl -q is-active $unit; then systemctl stop $unit; units="$units $unit"; fi
done
nvidia-smi --gpu-reset
rm -f {dcgm.RESULT}
for unit in $units; do systemctl start $unit; done
"""
COMMANDS: Mapping[Remedy, Sequence[str]] = {
    # Detached: slurmd ends the health program before a reset is done.
    "reset": ("systemd-run", "--quiet", "--collect", "--unit=muster-gpu-reset", "sh", "-c", RESET_SCRIPT),
    "reboot": ("systemctl", "--no-block", "reboot"),
}


def list_rungs(remedies: Iterable[Sequence[Remedy]]) -> list[Remedy]:
    """Return what may help against all problems, given the remedies of each; nothing if one cannot be solved that way.

    Problems that only rounds end do not count: such a process on a GPU may be what is left of a job after an Xid error.
    """
    counted = [each for each in remedies if tuple(each) != ("rounds",)]
    return [rung for rung in LADDER if counted and all(rung in each for each in counted)]


def choose_remedy(checks: Sequence[Check], attempts: Attempts, now: float) -> Remedy | None:
    """Return what to try next on an idle node that these checks drained; None to wait, or if nothing is left."""
    recent = select_recent(attempts, now)
    if any(not is_over(remedy, attempt, now) for remedy, attempt in recent.items()):
        return None
    return next((remedy for remedy in list_rungs(check.remedies for check in checks) if remedy not in recent), None)


def list_failed(checks: Sequence[Check], attempts: Attempts, now: float) -> list[str]:
    """Return what was tried in vain, once nothing is left to try."""
    recent = select_recent(attempts, now)
    rungs = list_rungs(check.remedies for check in checks)
    if any(rung not in recent or not is_over(rung, recent[rung], now) for rung in rungs):
        return []
    return list(rungs)


def is_over(remedy: str, attempt: Mapping[str, Any], now: float) -> bool:
    """Return whether a remedy has had its time."""
    if remedy == "reset":
        return bool(now - attempt["at"] >= RESET_S)
    return bool(attempt.get("booted")) or bool(now - attempt["at"] >= REBOOT_S)


def select_checks_of(problems: Sequence[HealthProblem], checks: Sequence[Check]) -> list[Check]:
    """Return the checks that reported these problems."""
    names = {problem.check for problem in problems if problem.blame != "user"}
    return [check for check in checks if check.name in names]


def select_recent(attempts: Attempts, now: float) -> dict[str, Mapping[str, Any]]:
    """Return the remedies that are not tried again yet."""
    return {remedy: attempt for remedy, attempt in attempts.items() if now - attempt["at"] < FORGET_S}
