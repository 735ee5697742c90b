"""Whole runs as processes: start them, wait for them, kill them with their children, and read their folders."""

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

from tests.trainer.forks import ForkedProgram

REPO = Path(__file__).resolve().parents[2]
HELD = "held"
# A busy machine may take minutes to import torch for each rank of torchrun, and a run that hangs is rare.
TIMEOUT_S = 600.0
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
    "metrics.profile_every=0",
    "run.device=cpu",
)


Process = subprocess.Popen[bytes] | ForkedProgram


class Launched:
    """A launcher with its ranks and their writers. Its output goes to a file, so that no pipe fills up."""

    def __init__(self, process: Process, log: Path) -> None:
        self.process = process
        self._log = log

    @property
    def output(self) -> str:
        return self._log.read_text(encoding="utf-8", errors="replace")

    def wait(self, timeout_s: float = TIMEOUT_S) -> int:
        """Wait for the end and return the exit status."""
        return self.process.wait(timeout_s)

    def until(self, condition: Callable[[], bool], what: str, timeout_s: float = TIMEOUT_S) -> None:
        deadline = time.monotonic() + timeout_s
        while not condition():
            ended = self.process.poll() is not None
            assert condition() or not ended, f"ended before {what}:\n{self.output}"
            assert time.monotonic() < deadline, f"no {what} within {timeout_s:g} s:\n{self.output}"
            time.sleep(0.02)

    def pids(self) -> list[int]:
        """Return all processes, the launcher first, so that a kill does not let it restart the others."""
        children: dict[int, list[int]] = {}
        for pid, parent in _processes():
            children.setdefault(parent, []).append(pid)
        pids = [self.process.pid]
        for pid in pids:
            pids += children.get(pid, [])
        return pids

    def rank_pids(self) -> list[int]:
        """Return the trainer's processes, by rank."""
        if isinstance(self.process, ForkedProgram):
            # Forks share a command line; they were started in the order of their ranks.
            return sorted(pid for pid, parent in _processes() if parent == self.process.pid)
        ranks = {_rank_of(pid): pid for pid in self.pids()}
        return [ranks[rank] for rank in sorted(ranks) if rank >= 0]

    def kill(self) -> None:
        """Kill all processes; they are listed before the first one dies, because orphans have lost their parent."""
        everything = self.pids()
        for pid in everything:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()
        wait_until_gone(everything)


@contextmanager
def torchrun(
    ranks: int, arguments: list[str], cwd: Path, *, program: str = "trainer", **variables: str
) -> Iterator[Launched]:
    """Start ranks under torchrun; processes that are still running at the end of the block are killed."""
    launcher = ["torch.distributed.run", "--standalone", "--local-addr=127.0.0.1", f"--nproc-per-node={ranks}"]
    with started([sys.executable, "-m", *launcher, "-m", program, *arguments], cwd, **variables) as run:
        yield run


@contextmanager
def forked(
    ranks: int,
    arguments: list[str],
    cwd: Path,
    *,
    program: str = "trainer",
    hold: tuple[int, int] | None = None,
    **variables: str,
) -> Iterator[Launched]:
    """Start ranks as forks, which is much faster, for tests that do not depend on the launcher.

    `hold` is a rank and the step before which it stops.
    """
    if hold:
        variables["HOLD"] = f"{hold[0]}:{hold[1]}"
    with alone([str(ranks), program, *arguments], cwd, program="tests.trainer.forked_ranks", **variables) as run:
        yield run


@contextmanager
def alone(arguments: list[str], cwd: Path, *, program: str = "trainer", **variables: str) -> Iterator[Launched]:
    """Start one process without a launcher, as a fork: its exit status is the trainer's."""
    log = _next_log(cwd)
    with _stopped_at_the_end(
        Launched(ForkedProgram(program, arguments, cwd, _environment(variables), log), log)
    ) as run:
        yield run


@contextmanager
def started(command: list[str], cwd: Path, **variables: str) -> Iterator[Launched]:
    """Start a command as a new process; what still runs at the end of the block is killed."""
    log = _next_log(cwd)
    with log.open("wb") as file:
        process = subprocess.Popen(command, cwd=cwd, env=_environment(variables), stdout=file, stderr=subprocess.STDOUT)
    with _stopped_at_the_end(Launched(process, log)) as run:
        yield run


def assert_finished(run: Launched) -> None:
    status = run.wait()
    assert status == 0, f"exit status {status}:\n{run.output}"


def wait_until_gone(pids: list[int], timeout_s: float = TIMEOUT_S) -> None:
    """Wait until processes that were killed or whose parent has ended are no longer running."""
    deadline = time.monotonic() + timeout_s
    while running := [pid for pid in pids if _is_running(pid)]:
        assert time.monotonic() < deadline, f"still running after {timeout_s:g} s: {running}"
        time.sleep(0.01)


def kill_when_held(run: Launched, folder: Path, after: int = 0) -> int:
    """Kill everything while a rank is held and there is a checkpoint after step `after`; return the newest step."""
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
    """Return the losses by step. JSON preserves every bit of a number, so equal means bitwise equal."""
    return {line["step"]: line["loss"] for line in lines(folder / "metrics" / f"rank-{rank:05d}.jsonl")}


def sample_ids(folder: Path) -> dict[int, list[int]]:
    """Return the samples that all ranks saw, by step."""
    seen: dict[int, list[int]] = {}
    for path in sorted((folder / "metrics").glob("samples-*.jsonl")):
        for line in lines(path):
            seen.setdefault(line["step"], []).extend(line["ids"])
    return seen


def events(folder: Path, kind: str) -> list[dict[str, Any]]:
    return [line for line in lines(folder / "events.jsonl") if line["event"] == kind]


def outcome(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / "outcome.json").read_text())
    return content


def checkpoint_steps(folder: Path) -> list[int]:
    names = (path.name for path in (folder / "checkpoints").glob("step-*"))
    return sorted(int(name[5:]) for name in names if re.fullmatch(r"step-\d{8}", name))


def checkpoint(folder: Path, step: int) -> Path:
    return folder / "checkpoints" / f"step-{step:08d}"


def digests(folder: Path, step: int) -> dict[str, Any]:
    """Return the checksums of a checkpoint's files with weights, optimizer and random states, by name."""
    files: dict[str, Any] = json.loads((checkpoint(folder, step) / "manifest.json").read_text())["files"]
    return {name: file["sha256"] for name, file in files.items() if name != "state.json"}


def lines(path: Path) -> list[dict[str, Any]]:
    """Read a file of JSON lines; a line that is not complete yet is left out."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


@contextmanager
def _stopped_at_the_end(run: Launched) -> Iterator[Launched]:
    try:
        yield run
    finally:
        if run.process.poll() is None:
            run.kill()


def _next_log(cwd: Path) -> Path:
    """Create the file, which a test may read before the process writes to it."""
    cwd.mkdir(parents=True, exist_ok=True)
    log = cwd / f"log-{len(list(cwd.glob('log-*')))}"
    log.touch()
    return log


def _environment(variables: dict[str, str]) -> dict[str, str]:
    # Variables of a launcher are removed: the tests themselves may run inside a job.
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "TORCHELASTIC_")) and k != "RANK"}
    fixed = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(REPO), "GLOO_SOCKET_IFNAME": "lo"}
    return {**inherited, **fixed, **variables}


def _processes() -> Iterator[tuple[int, int]]:
    """Yield (process, parent) of all processes."""
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            yield int(path.name), int((path / "stat").read_text().rpartition(")")[2].split()[1])


def _is_running(pid: int) -> bool:
    """Return whether a process is running; a zombie is not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _rank_of(pid: int) -> int:
    """Return RANK of a trainer process, or -1; writers have the variable too, but run another module."""
    try:
        arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return -1
    if b"trainer" not in arguments:
        return -1
    return next((int(variable[5:]) for variable in variables if variable.startswith(b"RANK=")), -1)
