"""Whole runs as processes: started, waited for, killed with everything they started, and read from their folders."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parents[2]
HELD = "held"
# Generous: the machine may be busy with other things, and a run that hangs is rare.
LIMIT_S = 240.0
SMALL_LLAMA = (
    "tiny-llama",
    "model.layers=2",
    "model.dim=32",
    "model.ffn=64",
    "model.seq_len=16",
    "schedule.warmup=0",
    "metrics.every=1",
    "metrics.tensorboard=false",
    "metrics.peak_tflops=1",
    "run.device=cpu",
)


class Launched:
    """A launcher with its ranks and their writers. What it says goes to a file, so that no pipe fills up."""

    def __init__(self, command: list[str], cwd: Path, environment: dict[str, str]) -> None:
        cwd.mkdir(parents=True, exist_ok=True)
        self._log = cwd / f"log-{len(list(cwd.glob('log-*')))}"
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(command, cwd=cwd, env=environment, stdout=log, stderr=subprocess.STDOUT)

    @property
    def said(self) -> str:
        return self._log.read_text(encoding="utf-8", errors="replace")

    def wait(self, limit_s: float = LIMIT_S) -> int:
        """The exit status."""
        return self.process.wait(limit_s)

    def until(self, reached: Callable[[], bool], what: str, limit_s: float = LIMIT_S) -> None:
        deadline = time.monotonic() + limit_s
        while not reached():
            ended = self.process.poll() is not None
            assert reached() or not ended, f"ended before {what}:\n{self.said}"
            assert time.monotonic() < deadline, f"no {what} within {limit_s:g} s:\n{self.said}"
            time.sleep(0.02)

    def pids(self) -> list[int]:
        """The launcher first, so that it starts nothing again."""
        children: dict[int, list[int]] = {}
        for pid, parent in _processes():
            children.setdefault(parent, []).append(pid)
        found = [self.process.pid]
        for pid in found:
            found += children.get(pid, [])
        return found

    def rank_pids(self) -> list[int]:
        """Of the trainer's processes, by rank."""
        ranks = {_rank_of(pid): pid for pid in self.pids()}
        return [ranks[rank] for rank in sorted(ranks) if rank >= 0]

    def kill(self) -> None:
        """SIGKILL of everything, found before the first one dies: orphans have no parent to be found by."""
        everything = self.pids()
        for pid in everything:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()
        deadline = time.monotonic() + LIMIT_S
        while any(_is_running(pid) for pid in everything):
            assert time.monotonic() < deadline, f"survived SIGKILL: {everything}"
            time.sleep(0.01)


@contextmanager
def torchrun(
    ranks: int, words: list[str], cwd: Path, *, program: str = "trainer", **variables: str
) -> Iterator[Launched]:
    """Whatever still runs at the end of the block is killed."""
    launcher = ["torch.distributed.run", "--standalone", "--local-addr=127.0.0.1", f"--nproc-per-node={ranks}"]
    with _running([sys.executable, "-m", *launcher, "-m", program, *words], cwd, variables) as run:
        yield run


@contextmanager
def forked(ranks: int, words: list[str], cwd: Path, *, hold: tuple[int, int] | None = None) -> Iterator[Launched]:
    """The same ranks, quicker there, for what does not ask who started them.

    `hold`: this rank stands still before this step.
    """
    variables = {"HOLD": f"{hold[0]}:{hold[1]}"} if hold else {}
    with _running([sys.executable, "-m", "tests.trainer.forked_ranks", str(ranks), *words], cwd, variables) as run:
        yield run


@contextmanager
def alone(words: list[str], cwd: Path, *, through: tuple[str, ...] = (), **variables: str) -> Iterator[Launched]:
    """One process without a launcher: its exit status is the trainer's own. `through` is a command that starts it."""
    with _running([*through, sys.executable, "-m", "trainer", *words], cwd, variables) as run:
        yield run


def finished(run: Launched) -> None:
    status = run.wait()
    assert status == 0, f"exit status {status}:\n{run.said}"


def kill_when_held(run: Launched, folder: Path, after: int = 0) -> int:
    """Kill everything while a rank stands still and there is a checkpoint after that step; the newest one's step."""
    run.until(
        lambda: (folder / HELD).exists() and max(checkpoint_steps(folder), default=0) > after,
        f"held rank and a checkpoint after step {after}",
    )
    run.kill()
    (folder / HELD).unlink()
    return checkpoint_steps(folder)[-1]


def wait_for_step(run: Launched, folder: Path, step: int) -> None:
    run.until(lambda: max(losses(folder), default=0) >= step, f"step {step}")


def losses(folder: Path, rank: int = 0) -> dict[int, float]:
    """By step. JSON gives back every bit of a number, so equal means bitwise equal."""
    return {line["step"]: line["loss"] for line in lines(folder / "metrics" / f"rank-{rank:05d}.jsonl")}


def sample_ids(folder: Path) -> dict[int, list[int]]:
    """What all ranks saw, by step."""
    seen: dict[int, list[int]] = {}
    for path in sorted((folder / "metrics").glob("samples-*.jsonl")):
        for line in lines(path):
            seen.setdefault(line["step"], []).extend(line["ids"])
    return seen


def events(folder: Path, kind: str) -> list[dict[str, Any]]:
    return [line for line in lines(folder / "events.jsonl") if line["event"] == kind]


def outcome(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "outcome.json").read_text())
    return found


def checkpoint_steps(folder: Path) -> list[int]:
    names = (path.name for path in (folder / "checkpoints").glob("step-*"))
    return sorted(int(name[5:]) for name in names if re.fullmatch(r"step-\d{8}", name))


def checkpoint(folder: Path, step: int) -> Path:
    return folder / "checkpoints" / f"step-{step:08d}"


def digests(folder: Path, step: int) -> dict[str, Any]:
    """Checksums of a checkpoint's files with weights, optimizer and random states, by name."""
    files: dict[str, Any] = json.loads((checkpoint(folder, step) / "manifest.json").read_text())["files"]
    return {name: file["sha256"] for name, file in files.items() if name != "state.json"}


def lines(path: Path) -> list[dict[str, Any]]:
    """A line that is not whole yet is left out."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


@contextmanager
def _running(command: list[str], cwd: Path, variables: dict[str, str]) -> Iterator[Launched]:
    # Its own ranks only: the tests themselves may run inside a job.
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "TORCHELASTIC_")) and k != "RANK"}
    fixed = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(REPO), "GLOO_SOCKET_IFNAME": "lo"}
    run = Launched(command, cwd, {**kept, **fixed, **variables})
    try:
        yield run
    finally:
        if run.process.poll() is None:
            run.kill()


def _processes() -> Iterator[tuple[int, int]]:
    """(process, parent)"""
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            yield int(path.name), int((path / "stat").read_text().rpartition(")")[2].split()[1])


def _is_running(pid: int) -> bool:
    """A zombie that nobody collects does nothing any more."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _rank_of(pid: int) -> int:
    """RANK in the environment of a trainer process, else -1; writers have it too, but run another module."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return -1
    if b"trainer" not in words:
        return -1
    return next((int(variable[5:]) for variable in variables if variable.startswith(b"RANK=")), -1)
