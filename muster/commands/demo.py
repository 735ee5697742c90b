"""`muster demo`: create a cluster, run the smoke job, train a model, fetch its report, and show the time spent."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path

from infra.engine.command_line import format_command
from infra.engine.stop import Stop
from infra.home import Home, StackHome
from infra.shell import read_inventory, run, unattended
from muster.commands import screen
from muster.commands.stacks import require_running_stack
from muster.commands.submit import submit
from muster.commands.train import TRAINER_ON_NODE
from muster.commands.up import list_next_steps, up

SMOKE_JOB = "slurm/jobs/smoke.sbatch"
TRAINING_JOB = "slurm/jobs/train.sbatch"
# Real text that is on every node without a download.
_TEXT = "/shared/muster/env/lib/python3*/site-packages/torch/nn"
_SHARDS = "data/torch-source"


def demo(name: str) -> None:
    """Run the whole demo on a stack."""
    ended = up(name, force=False, wait=False, command="demo")
    began = time.monotonic()
    submit(name, SMOKE_JOB, [])
    job = time.monotonic() - began
    setup_seconds, inside_setup = read_setup_times(Home.of(os.environ))
    phases = (
        ({"setup": setup_seconds} if setup_seconds else {}) | {"up": ended.seconds, "smoke job": job} | _train(name)
    )
    _print_summary(phases, {"setup": inside_setup, "up": split_up_seconds(ended.seconds, ended.phases)})
    screen.print_next_steps(list_next_steps(name))


def read_setup_times(home: Home) -> tuple[float, dict[str, float]]:
    """Return the wall time of the last `make setup` and the seconds of each phase with work to do; 0, {} if unknown.

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


def compute_shares(phases: dict[str, float]) -> dict[str, float]:
    """Return the share of each phase in the total time."""
    total = sum(phases.values()) or 1.0
    return {name: seconds / total for name, seconds in phases.items()}


def split_up_seconds(seconds: float, phases: dict[str, float]) -> dict[str, float]:
    """Return the seconds of each phase of `up`; time outside the phases is attributed to the engine."""
    return {"engine": max(seconds - sum(phases.values()), 0.0)} | phases


def _print_summary(phases: dict[str, float], parts: dict[str, dict[str, float]]) -> None:
    table = screen.new_table("phase", "seconds", "share", right=["seconds", "share"])
    for name, share in compute_shares(phases).items():
        table.add_row(name, f"{phases[name]:.1f}", f"{share:.0%}")
        for part, seconds in parts.get(name, {}).items():
            table.add_row(f"[dim]  {part}[/dim]", f"[dim]{seconds:.1f}[/dim]", "")
    table.add_row("all", f"{sum(phases.values()):.1f}", "100%", style="bold")
    screen.out().print()
    screen.out().print(table, "")


def _train(name: str) -> dict[str, float]:
    """Train on the cluster and fetch the report; return the seconds of each phase."""
    stack = require_running_stack(name)
    login = read_inventory(stack).login.name
    home = run(stack, login, "pwd").stdout.strip()
    folder = f"{home}/runs/demo-{time.strftime('%Y%m%dT%H%M%S')}"
    began = time.monotonic()
    _follow(stack, login, f"{TRAINER_ON_NODE} prepare {_TEXT} --out {_SHARDS} --workers 2", "prepare the text")
    prepared = time.monotonic()
    submit(name, TRAINING_JOB, ["demo", f"data.path={home}/{_SHARDS}", f"run.folder={folder}"])
    trained = time.monotonic()
    page = _fetch_report(stack, login, folder)
    screen.print_success(f"training report: {page}")
    ended = time.monotonic()
    return {"training data": prepared - began, "training job": trained - prepared, "report": ended - trained}


def _follow(stack: StackHome, login: str, script: str, what: str, *, quiet: bool = False) -> None:
    line = unattended(stack, login, None, ["bash", "-c", f"'{script}'"])
    done = subprocess.run(line, stdout=subprocess.DEVNULL if quiet else None, check=False)
    if done.returncode != 0:
        raise Stop(f"demo: could not {what} (exit code {done.returncode})", format_command("ssh", stack.name))


def _fetch_report(stack: StackHome, login: str, folder: str) -> Path:
    # It names the result, which the job has printed, and a path on the cluster, from where the page is fetched.
    _follow(stack, login, f"{TRAINER_ON_NODE} report {folder}", "draw the report", quiet=True)
    # Next to the receipts, so that it outlives the cluster.
    page = stack.home.root / "reports" / f"{stack.name}-{Path(folder).name}.html"
    page.parent.mkdir(parents=True, exist_ok=True)
    line = unattended(stack, login, None, ["cat", f"{folder}/report/index.html"])
    page.write_bytes(subprocess.run(line, capture_output=True, check=True).stdout)
    return page
