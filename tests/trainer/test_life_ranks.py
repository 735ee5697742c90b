"""Two real ranks: they agree when to stop, survive a kill, name missing ranks, and report hangs."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.trainer.first_cause import assert_first_cause
from tests.trainer.forks import ForkedProgram
from tests.trainer.launch import TIMEOUT_S, Launched, assert_finished, started
from trainer.life.cause import Cause

REPO = Path(__file__).resolve().parents[2]
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "FATAL", "PYTHONPATH": str(REPO)}
RESERVATIONS: list[socket.socket] = []


def free_port() -> int:
    """Return a port that no other process gets until this one ends, unless it asks for this number and listens."""
    reservation = socket.socket()
    reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reservation.bind(("127.0.0.1", 0))
    RESERVATIONS.append(reservation)
    return int(reservation.getsockname()[1])


def start(
    world: int, program: str, folder: Path, *arguments: str, ranks: range | None = None, **more: str
) -> list[Launched]:
    """Start ranks as forks; each writes its output to a file of its own."""
    port = str(free_port())
    logs = folder.with_name(f"{folder.name}-logs")
    logs.mkdir(exist_ok=True)
    processes = []
    for rank in ranks or range(world):
        place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world}
        where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        environment = ENVIRONMENT | {key: str(value) for key, value in place.items()} | where | more
        log = logs / f"rank-{rank}"
        processes.append(Launched(ForkedProgram(program, [str(folder), *arguments], REPO, environment, log), log))
    return processes


def finish(ranks: list[Launched]) -> tuple[list[int], str]:
    """Wait for the ranks and return their exit statuses and output; those still running are killed."""
    try:
        statuses = [rank.wait() for rank in ranks]
    finally:
        for rank in ranks:
            rank.process.kill()
    return statuses, "".join(rank.output for rank in ranks)


def wait_for(file: Path, timeout_s: float = TIMEOUT_S) -> str:
    end = time.monotonic() + timeout_s
    while not file.exists():
        assert time.monotonic() < end, f"{file} did not appear"
        time.sleep(0.02)
    return file.read_text()


@pytest.fixture(scope="module")
def frozen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[list[Launched], Path]]:
    """Start ranks of which one freezes; they come first because detecting it takes long and is mostly waiting."""
    folder = tmp_path_factory.mktemp("frozen")
    ranks = start(2, "tests.trainer.hang_rank", folder, "60", "freeze")
    yield ranks, folder
    for rank in ranks:
        rank.process.kill()


@pytest.mark.usefixtures("frozen")
def test_a_killed_rank_is_restarted_and_the_run_finishes(tmp_path: Path) -> None:
    (tmp_path / "crash").touch()
    outcome = tmp_path / "outcome.json"
    torchrun = ["-m", "torch.distributed.run", "--nproc-per-node=2", "--max-restarts=2", "--monitor-interval=0.1"]
    rendezvous = ["--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0", "--local-addr=127.0.0.1"]
    command = [sys.executable, *torchrun, *rendezvous, "-m", "tests.trainer.life_rank", str(tmp_path), "8"]
    with started(command, tmp_path / "logs", MUSTER_OUTCOME_FILE=str(outcome)) as run:
        assert_finished(run)
    assert not (tmp_path / "crash").exists()
    ends = [json.loads((tmp_path / f"end-{rank}").read_text()) for rank in range(2)]
    assert ends == [{"step": 8, "stop": None, "work": [0.5, 1.5]}] * 2
    assert {(tmp_path / f"busy-{rank}").read_text() for rank in range(2)} == {"4"}
    ended = json.loads(outcome.read_text())
    assert (ended["outcome"], ended["reason"], ended["step"]) == ("finished", "all steps done", 8)


@pytest.mark.parametrize("under_job", [False, True], ids=["alone", "in a job"])
def test_a_signal_to_one_rank_stops_all_at_the_same_step(tmp_path: Path, under_job: bool) -> None:
    more = {"MUSTER_OUTCOME_FILE": str(tmp_path / "outcome.json")} if under_job else {}
    ranks = start(2, "tests.trainer.life_rank", tmp_path, "2000", **more)
    for rank in range(2):
        wait_for(tmp_path / f"pid-{rank}")
    # Under a job script, SIGTERM alone does not end the run, because torchrun may have sent it; a warning does.
    os.kill(int((tmp_path / "pid-1").read_text()), signal.SIGTERM if not under_job else signal.SIGUSR2)
    statuses, output = finish(ranks)
    assert statuses == ([0, 0] if under_job else [75, 75]), output
    first, second = (json.loads((tmp_path / f"end-{rank}").read_text()) for rank in range(2))
    assert first == second
    assert first["step"] < 2000
    assert json.loads((tmp_path / "outcome.json").read_text())["outcome"] == "requeue"


def test_ranks_that_do_not_join_are_named(tmp_path: Path) -> None:
    first, last = (
        start(4, "tests.trainer.life_rank", tmp_path, "8", ranks=range(rank, rank + 1), JOIN_S="3") for rank in (0, 3)
    )
    host = socket.gethostname()
    statuses, output = finish(first)
    assert statuses == [1]
    assert f"WorldError: did not join within 3 s: rank 1 on {host}, rank 2 on {host}, rank 3 on {host}" in output
    statuses, output = finish(last)
    assert statuses == [1]
    assert "WorldError: rank 0 did not join: no answer from 127.0.0.1:" in output


def test_a_hung_rank_is_named_and_every_stack_is_written(tmp_path: Path) -> None:
    statuses, output = finish(start(2, "tests.trainer.hang_rank", tmp_path, "3", "sleep", TORCH_FR_BUFFER_SIZE="100"))
    host = socket.gethostname()
    assert 76 in statuses, output
    assert 0 not in statuses
    report = (tmp_path / "hang" / "report.txt").read_text()
    assert f"behind: rank 1 on {host} (step 8, data); the furthest is at step 8, compute" in report, output
    assert f"behind: rank 1 on {host} (step 8, data)" in output
    stacks = [(tmp_path / "hang" / f"rank-0000{rank}.txt").read_text() for rank in range(2)]
    assert "all_reduce" in stacks[0]
    assert "in misbehave" in stacks[1]
    assert (tmp_path / "hang" / "collectives-rank-0").stat().st_size > 0
    blamed = assert_first_cause(tmp_path, Cause.HANG, rank=1)["failure"]
    assert blamed["error"].endswith("in data of step 8")


def test_a_single_rank_ends_even_if_nothing_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "hang").write_text("no folder")
    statuses, output = finish(start(1, "tests.trainer.hang_rank", tmp_path, "1", "sleep"))
    assert statuses == [76], output
    assert f"stacks cannot be written to {tmp_path}/hang: " in output


def test_a_phase_with_its_own_limit_is_not_a_hang(tmp_path: Path) -> None:
    """One rank takes long to get its data while the other waits for it; then both take long to save."""
    statuses, output = finish(start(2, "tests.trainer.hang_rank", tmp_path, "3", "slow"))
    assert statuses == [0, 0], output
    assert not (tmp_path / "hang").exists()


def test_steps_that_end_with_a_save_count_for_the_limit(tmp_path: Path) -> None:
    statuses, output = finish(start(1, "tests.trainer.hang_rank", tmp_path, "1", "save and sleep"))
    assert statuses == [76], output
    assert re.search(r"no progress for \d+ s \(limit 1 s\)", output), output


def test_stacks_are_printed_even_if_the_interpreter_is_locked(tmp_path: Path) -> None:
    statuses, output = finish(start(1, "tests.trainer.hang_rank", tmp_path, "1", "lock"))
    assert statuses == [1]
    assert "Timeout (0:00:04)!" in output
    assert "in misbehave" in output


def test_a_rank_that_cannot_obey_sigterm_exits_before_it_is_killed(tmp_path: Path) -> None:
    ranks = start(2, "tests.trainer.hang_rank", tmp_path, "60", "sleep")
    wait_for(tmp_path / "wrong")
    for rank in ranks:
        rank.process.terminate()
    statuses, output = finish(ranks)
    waited = re.search(r"received SIGTERM and made no progress for (\d+) s", output)
    assert waited, output
    assert int(waited[1]) < 30  # after that torchrun would kill it
    assert 76 in statuses, output


def test_a_silent_rank_is_detected_long_before_the_limit(frozen: tuple[list[Launched], Path]) -> None:
    ranks, folder = frozen
    statuses, output = finish(ranks[:1])
    assert statuses == [76], output
    assert (
        "ranks have been silent for 15 s; silent, because their process or node is dead or stuck: rank 1 on" in output
    )
    assert "all_reduce" in (folder / "hang" / "rank-00000.txt").read_text()
    assert_first_cause(folder, Cause.LOST_PEER, rank=1)
