"""Ranks on one GPU as fresh processes: NCCL's variables are read before torch is imported, so forks do not do."""

from __future__ import annotations

import subprocess
import sys
from contextlib import AbstractContextManager
from pathlib import Path

from tests.trainer.launch import Launched, started
from tests.trainer.test_life_ranks import ENVIRONMENT, REPO, free_port

FINISH_TIMEOUT_S = 240.0


def train(arguments: list[str], cwd: Path) -> AbstractContextManager[Launched]:
    """Start `python -m trainer` as a process of its own; as a fork (`alone`), such runs did not end on an H200."""
    return started([sys.executable, "-m", "trainer", *arguments], cwd)


def start(world: int, program: str, *arguments: str, **more: str) -> list[subprocess.Popen[str]]:
    """Start `python -m program arguments...` once per rank."""
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    processes = []
    for rank in range(world):
        place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world}
        environment = ENVIRONMENT | {key: str(value) for key, value in place.items()} | where | more
        command = [sys.executable, "-m", program, *arguments]
        processes.append(
            subprocess.Popen(
                command, env=environment, cwd=REPO, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
            )
        )
    return processes


def finish(processes: list[subprocess.Popen[str]]) -> tuple[list[int], str]:
    """Wait for the ranks and return their exit statuses and output; those still running are killed."""
    try:
        output = "".join(process.communicate(timeout=FINISH_TIMEOUT_S)[0] for process in processes)
    finally:
        for process in processes:
            process.kill()
    return [process.returncode for process in processes], output
