"""`muster demo`: up, the smoke job, a real training run with its report, and where the time went."""

from __future__ import annotations

import json
import os
import time

from infra.home import Home
from muster.commands import screen
from muster.commands.demo_training import train
from muster.commands.submit import submit
from muster.commands.up import up, what_next

JOB = "slurm/jobs/smoke.sbatch"


def demo(name: str) -> None:
    ended = up(name, force=False, wait=False)
    began = time.monotonic()
    submit(name, JOB, [])
    job = time.monotonic() - began
    setup_seconds, inside_setup = read_setup(Home.of(os.environ))
    phases = ({"setup": setup_seconds} if setup_seconds else {}) | {"up": ended.seconds, "smoke job": job} | train(name)
    _summary(phases, {"setup": inside_setup, "up": parts_of_up(ended.seconds, ended.phases)})
    screen.next_steps(what_next(name))


def read_setup(home: Home) -> tuple[float, dict[str, float]]:
    """Return the wall time of the last set-up and the seconds of each phase that had work to do; 0 and {} if unknown.

    Phases run concurrently, so their sum can exceed the wall time. Phases without work are summed up as "checks".
    """
    try:
        record = json.loads(home.setup_log.read_text())
        wall_seconds, phases = float(record["seconds"]), record["phases"]
        seconds = {name: float(phase["seconds"]) for name, phase in phases.items()}
        checks = {name for name, phase in phases.items() if phase["state"] == "cached" or name == "preflight"}
        done = {name: seconds[name] for name in seconds if name not in checks}
        return wall_seconds, {"checks": sum(seconds[name] for name in checks)} | done
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return 0.0, {}


def shares(phases: dict[str, float]) -> dict[str, float]:
    total = sum(phases.values()) or 1.0
    return {name: seconds / total for name, seconds in phases.items()}


def parts_of_up(seconds: float, phases: dict[str, float]) -> dict[str, float]:
    """What is in none of the phases is the engine's: starting, comparing, writing its state."""
    return {"engine": max(seconds - sum(phases.values()), 0.0)} | phases


def _summary(phases: dict[str, float], parts: dict[str, dict[str, float]]) -> None:
    table = screen.table("phase", "seconds", "share", right=["seconds", "share"])
    for name, share in shares(phases).items():
        table.add_row(name, f"{phases[name]:.1f}", f"{share:.0%}")
        for part, seconds in parts.get(name, {}).items():
            table.add_row(f"[dim]  {part}[/dim]", f"[dim]{seconds:.1f}[/dim]", "")
    table.add_row("all", f"{sum(phases.values()):.1f}", "100%", style="bold")
    screen.out().print()
    screen.out().print(table, "")
