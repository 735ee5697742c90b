"""Two torchruns with the settings of train.sbatch: one runs alone, the other joins later."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]
JOB = (REPO / "slurm" / "jobs" / "train" / "main.sh").read_text()
STEPS = 40_000


@pytest.fixture
def agents(tmp_path: Path) -> Iterator[list[subprocess.Popen[bytes]]]:
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for process in started:
        process.kill()
        process.wait()


def start(folder: Path, port: int, is_host: bool) -> subprocess.Popen[bytes]:
    rendezvous = re.search(r"^rendezvous=(\S+)$", JOB, re.MULTILINE)
    exports = dict(re.findall(r"^export (TORCH_\w+)=(\d+)$", JOB, re.MULTILINE))
    assert rendezvous is not None
    assert exports == {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    env = os.environ | exports | {"OMP_NUM_THREADS": "1", "MUSTER_OUTCOME_FILE": str(folder / "outcome.json")}
    options = ["--nnodes=1:2", "--nproc-per-node=1", "--max-restarts=3", "--monitor-interval=0.5"]
    address = ["--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--local-addr=127.0.0.1", "--rdzv-id=1.0"]
    conf = f"--rdzv-conf=is_host={str(is_host).lower()},join_timeout=100,read_timeout=100,{rendezvous[1]}"
    rank = ["-m", "tests.trainer.life_rank", str(folder), str(STEPS)]
    with (folder / "log").open("ab") as log:
        command = [sys.executable, "-m", "torch.distributed.run", *options, *address, conf, *rank]
        return subprocess.Popen(command, env=env, cwd=REPO, stdout=log, stderr=log)


def wait_for_ranks(folder: Path, *ranks: int) -> None:
    """Wait until these ranks have joined again."""
    end = time.monotonic() + 240
    while not all((folder / f"pid-{rank}").exists() for rank in ranks):
        assert time.monotonic() < end, (folder / "log").read_text()
        time.sleep(0.05)
    for rank in ranks:
        (folder / f"pid-{rank}").unlink()


@pytest.mark.nightly
def test_a_node_can_join_later(tmp_path: Path, agents: list[subprocess.Popen[bytes]]) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    agents.append(start(tmp_path, port, is_host=True))
    wait_for_ranks(tmp_path, 0)

    agents.append(start(tmp_path, port, is_host=False))
    wait_for_ranks(tmp_path, 0, 1)
    # The first rank received SIGTERM and saved, but that signal alone does not end the run.
    assert json.loads((tmp_path / "outcome.json").read_text())["outcome"] == "terminated"

    (tmp_path / "stop").write_text("seen enough")
    assert [agent.wait(timeout=240) for agent in agents] == [0, 0], (tmp_path / "log").read_text()
    outcome = json.loads((tmp_path / "outcome.json").read_text())
    assert (outcome["outcome"], outcome["reason"]) == ("stopped", "seen enough")
    assert len(json.loads((tmp_path / "end-0").read_text())["work"]) == 2
