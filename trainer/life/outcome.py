"""How a run ended: an exit code for its caller, and a file from which the job script decides whether to requeue."""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from enum import IntEnum
from pathlib import Path

from trainer.life.stop import StopReason

FILE_VARIABLE = "MUSTER_OUTCOME_FILE"
UNDECIDED = "terminated"


class Code(IntEnum):
    """The exit codes of a run; 75 is EX_TEMPFAIL of sysexits.h: try again later."""

    FINISHED = 0
    BROKEN = 1
    BAD_INPUT = 2
    REQUEUE = 75
    HANG = 76
    STOPPED = 77


@dataclass(frozen=True)
class RunOutcome:
    """The content of the outcome file."""

    outcome: str
    reason: str
    step: int
    time: float


def clear(folder: Path, rank: int) -> None:
    """Delete the outcome of an earlier start: a run that continues has not ended."""
    if rank == 0:
        with suppress(OSError):  # the check of the folder reports one that is not writable
            _outcome_file(folder).unlink(missing_ok=True)


def end(code: Code, reason: str, step: int, folder: Path, rank: int) -> int:
    """Write how the run ended and return the exit status of the process.

    Under a job script, a process whose run has ended exits with 0, because torchrun would otherwise restart its
    workers. A hang is not an end: the workers have to be restarted.
    """
    file = _outcome_file(folder)
    # A rank that fails alone has to write the file itself: rank 0 does not know the reason.
    if code is not Code.HANG and (rank == 0 or (code in (Code.BROKEN, Code.BAD_INPUT) and not file.exists())):
        _write(file, RunOutcome(code.name.lower(), reason, step, time.time()))
    return 0 if FILE_VARIABLE in os.environ and code is not Code.HANG else int(code)


def end_after_stop(reason: StopReason, note: str, step: int, folder: Path, rank: int) -> int:
    """Write the outcome of a run that obeyed a stop request, and return the exit status of the process.

    torchrun also sends SIGTERM when it restarts its workers because of a lost rank or a new node, and then the new
    workers must continue. So under a job script, SIGTERM alone decides nothing. If Slurm sent it, torchrun ends too.
    """
    if reason is StopReason.TERMINATED and FILE_VARIABLE in os.environ:
        if rank == 0:
            _write(_outcome_file(folder), RunOutcome(UNDECIDED, reason.text, step, time.time()))
        return int(Code.REQUEUE)
    code = Code.REQUEUE if reason.requeue else Code.STOPPED
    return end(code, note or reason.text, step, folder, rank)


def read_decided() -> RunOutcome | None:
    """Return the outcome this job has already decided on, if any: a rank restarted after that has nothing to do."""
    if FILE_VARIABLE not in os.environ:
        return None
    outcome = _read(Path(os.environ[FILE_VARIABLE]))
    return None if outcome is None or outcome.outcome == UNDECIDED else outcome


def _read(file: Path) -> RunOutcome | None:
    try:
        return RunOutcome(**json.loads(file.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None


def _outcome_file(folder: Path) -> Path:
    return Path(os.environ.get(FILE_VARIABLE, folder / "outcome.json"))


def _write(file: Path, outcome: RunOutcome) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    temporary = file.with_name(f".{file.name}.{os.getpid()}")
    temporary.write_text(json.dumps(asdict(outcome)) + "\n", encoding="utf-8")
    temporary.replace(file)
