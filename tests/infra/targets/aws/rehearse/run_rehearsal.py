"""Run `muster rehearse` as a command, and look for what it left on this machine."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import docker

from cluster import names
from infra.targets.aws.rehearse.scenarios import PASSED
from tests.harness import REPO

# Together shorter than pytest's own limit, so that a rehearsal that hangs still removes what it created.
TIMEOUT_S, CLEANUP_TIMEOUT_S = 690, 180
OUTPUT = "output.txt"


@dataclass(frozen=True)
class RunningRehearsal:
    """A rehearsal that runs as a process of its own."""

    home: Path
    stack: str
    process: subprocess.Popen[bytes]

    def finish(self, timeout_s: float = TIMEOUT_S) -> str:
        """Wait for the end and return the output; fail the test if the rehearsal fails."""
        try:
            code = self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            code = self.interrupt()
        text = (self.home / OUTPUT).read_text()
        assert code == 0, text
        return text

    def interrupt(self) -> int:
        """Let the rehearsal remove what it created, and return its exit code."""
        self.process.send_signal(signal.SIGINT)
        try:
            return self.process.wait(CLEANUP_TIMEOUT_S)
        finally:
            self.process.kill()


def start_rehearsal(home: Path, stack: str, *options: str) -> RunningRehearsal:
    """Start the rehearsal of a stack."""
    command = [sys.executable, "-m", "muster.cli", "rehearse", "--stack", stack, *options]
    env = {**os.environ, "MUSTER_HOME": str(home)}
    # To a file: a reader of a pipe would wait for every process that inherits it.
    with (home / OUTPUT).open("w") as file:
        process = subprocess.Popen(command, cwd=REPO, env=env, stdout=file, stderr=subprocess.STDOUT)
    return RunningRehearsal(home, stack, process)


def run_rehearsal(home: Path, stack: str, *options: str, timeout_s: float = TIMEOUT_S) -> str:
    """Rehearse a stack and return the output; fail the test if the rehearsal fails."""
    return start_rehearsal(home, stack, *options).finish(timeout_s)


def find_passed(output: str) -> list[str]:
    """Return the scenarios that share a cluster and have passed, in their order."""
    return re.findall(rf"^{PASSED}(\S+)$", output, re.MULTILINE)


def list_remains(home: Path, stack: str) -> list[object]:
    """Return the containers, networks and volumes of a rehearsal that Docker still has."""
    labels = names.home_labels(home / "rehearsals" / stack)
    client, own = docker.from_env(), {"label": f"{names.HOME}={labels[names.HOME]}"}
    containers = client.containers.list(all=True, filters=own)
    return [*containers, *client.networks.list(filters=own), *client.volumes.list(filters=own)]
