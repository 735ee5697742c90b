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
    phases = setup_phases(Home.of(os.environ)) | {"up": ended.seconds} | {"smoke job": job} | train(name)
    _summary(phases, ended.phases)
    screen.next_steps(what_next(name))


def setup_phases(home: Home) -> dict[str, float]:
    """Seconds per phase of the last set-up, where it left its record; what was there already is one line."""
    try:
        phases = json.loads(home.setup_log.read_text())["phases"]
        seconds = {name: float(phase["seconds"]) for name, phase in phases.items()}
        looks = {name for name, phase in phases.items() if phase["state"] == "cached" or name == "preflight"}
        done = {f"setup: {name}": seconds[name] for name in seconds if name not in looks}
        return {"setup: checks": sum(seconds[name] for name in looks)} | done
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def shares(phases: dict[str, float]) -> dict[str, float]:
    total = sum(phases.values()) or 1.0
    return {name: seconds / total for name, seconds in phases.items()}


def parts_of_up(seconds: float, phases: dict[str, float]) -> dict[str, float]:
    """What is in none of the phases is the engine's: starting, comparing, writing its state."""
    return {"engine": max(seconds - sum(phases.values()), 0.0)} | phases


def _summary(phases: dict[str, float], inside_up: dict[str, float]) -> None:
    table = screen.table("phase", "seconds", "share", right=["seconds", "share"])
    for name, share in shares(phases).items():
        table.add_row(name, f"{phases[name]:.1f}", f"{share:.0%}")
        if name == "up":
            for part, seconds in parts_of_up(phases["up"], inside_up).items():
                table.add_row(f"[dim]  {part}[/dim]", f"[dim]{seconds:.1f}[/dim]", "")
    table.add_row("all", f"{sum(phases.values()):.1f}", "100%", style="bold")
    screen.out().print()
    screen.out().print(table, "")
