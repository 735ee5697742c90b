"""Run `muster rehearse` as a command, and look for what it left on this machine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import docker

from cluster import names
from tests.harness import REPO

# Together shorter than pytest's own limit, so that a rehearsal that hangs still removes what it created.
TIMEOUT_S, CLEANUP_TIMEOUT_S = 690, 180


def run_rehearsal(home: Path, stack: str, *options: str, timeout_s: float = TIMEOUT_S) -> str:
    """Rehearse a stack and return the output; fail the test if the rehearsal fails."""
    command = [sys.executable, "-m", "muster.cli", "rehearse", "--stack", stack, *options]
    env = {**os.environ, "MUSTER_HOME": str(home)}
    # To a file: a reader of a pipe would wait for every process that inherits it.
    with (home / "output.txt").open("w+") as file:
        process = subprocess.Popen(command, cwd=REPO, env=env, stdout=file, stderr=subprocess.STDOUT)
        try:
            code = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
            code = process.wait(CLEANUP_TIMEOUT_S)
        finally:
            process.kill()
        file.seek(0)
        text = file.read()
    assert code == 0, text
    return text


def list_remains(home: Path, stack: str) -> list[object]:
    """Return the containers, networks and volumes of a rehearsal that Docker still has."""
    labels = names.home_labels(home / "rehearsals" / stack)
    client, own = docker.from_env(), {"label": f"{names.HOME}={labels[names.HOME]}"}
    containers = client.containers.list(all=True, filters=own)
    return [*containers, *client.networks.list(filters=own), *client.volumes.list(filters=own)]
