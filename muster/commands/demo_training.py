"""The second half of `muster demo`: text to token shards, a training job across nodes, its report on this machine."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

from infra.engine.stop import Stop
from infra.engine.typed import typed
from infra.home import StackHome
from infra.shell import read_inventory, run, unattended
from muster.commands import screen
from muster.commands.submit import submit
from muster.commands.where import running_stack

JOB = "slurm/jobs/train.sbatch"
TRAINER = "/shared/muster/trainer/run"
# Real text that is on every node without a download: the part of torch that people read most.
TEXT = "/shared/muster/env/lib/python3*/site-packages/torch/nn"
SHARDS = "data/torch-source"


def train(name: str) -> dict[str, float]:
    """Seconds by what they went to."""
    stack = running_stack(name)
    login = read_inventory(stack).login.name
    home = run(stack, login, "pwd").stdout.strip()
    folder = f"{home}/runs/demo-{time.strftime('%Y%m%dT%H%M%S')}"
    began = time.monotonic()
    _follow(stack, login, f"{TRAINER} prepare {TEXT} --out {SHARDS} --workers 2", "prepare the text")
    prepared = time.monotonic()
    submit(name, JOB, ["demo", f"data.path={home}/{SHARDS}", f"run.folder={folder}"])
    trained = time.monotonic()
    page = _fetch_report(stack, login, folder)
    screen.good(f"what it learned and where its time went: {page}")
    ended = time.monotonic()
    return {"training data": prepared - began, "training job": trained - prepared, "report": ended - trained}


def _follow(stack: StackHome, login: str, script: str, what: str) -> None:
    done = subprocess.run(unattended(stack, login, None, ["bash", "-c", f"'{script}'"]), check=False)
    if done.returncode != 0:
        raise Stop(f"demo: could not {what} (exit code {done.returncode})", typed("ssh", stack.name))


def _fetch_report(stack: StackHome, login: str, folder: str) -> Path:
    _follow(stack, login, f"{TRAINER} report {folder}", "draw the report")
    # Beside the receipts: it outlives the cluster.
    page = stack.home.root / "reports" / f"{stack.name}-{Path(folder).name}.html"
    page.parent.mkdir(parents=True, exist_ok=True)
    line = unattended(stack, login, None, ["cat", f"{folder}/report/index.html"])
    page.write_bytes(subprocess.run(line, capture_output=True, check=True).stdout)
    return page
