"""The rehearsal of the g6 pair: up, a job on two nodes that Slurm launches, teardown, nothing left on this machine."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import docker
import pytest

from cluster import names
from tests.harness import REPO

pytestmark = [pytest.mark.e2e, pytest.mark.nightly]

# Together shorter than pytest's own limit, so that a rehearsal that hangs still removes what it created.
TIMEOUT_S, CLEANUP_TIMEOUT_S = 690, 180


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def output(home: Path) -> str:
    command = [sys.executable, "-m", "muster.cli", "rehearse", "--stack", "aws-g6-pair", "--speed", "20"]
    env = {**os.environ, "MUSTER_HOME": str(home)}
    # To a file: a reader of a pipe would wait for every process that inherits it.
    with (home / "output.txt").open("w+") as file:
        process = subprocess.Popen(command, cwd=REPO, env=env, stdout=file, stderr=subprocess.STDOUT)
        try:
            code = process.wait(TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
            code = process.wait(CLEANUP_TIMEOUT_S)
        finally:
            process.kill()
        file.seek(0)
        text = file.read()
    assert code == 0, text
    return text


def test_a_job_ran_on_both_nodes_and_teardown_left_nothing(output: str, home: Path) -> None:
    assert "ready: controller, up to 2 autoscaled nodes in " in output
    assert "the job ran on gpu-1, gpu-2" in output
    (receipt,) = (home / "rehearsals" / "aws-g6-pair" / "receipts").glob("*.json")
    assert json.loads(receipt.read_text())["left"] == 0


def test_the_timeline_has_the_order_of_aws(output: str, home: Path) -> None:
    text = (home / "rehearsals" / "aws-g6-pair" / "timeline.txt").read_text()
    moments = {match[2]: float(match[1]) for match in re.finditer(r"^ *([\d.]+) s  (.+)$", text, re.MULTILINE)}
    events = {re.sub(r"\s{2,}", " ", what): at for what, at in moments.items()}
    assert events["controller runs user data"] < events["gpu-1 pending"] < events["gpu-1 runs user data"]
    assert events["rehearsal teardown"] < events["gpu-1 terminated"]
    assert "denied" not in text


def test_nothing_of_the_rehearsal_is_left_on_this_machine(output: str, home: Path) -> None:
    labels = names.home_labels(home / "rehearsals" / "aws-g6-pair")
    client, own = docker.from_env(), {"label": f"{names.HOME}={labels[names.HOME]}"}
    assert client.containers.list(all=True, filters=own) == []
    assert client.networks.list(filters=own) == []
    assert client.volumes.list(filters=own) == []
