"""How a run ended: an exit code for whoever started it, and a file for the job script that decides what comes next."""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from enum import IntEnum
from pathlib import Path

from trainer.life.reason import Reason

FILE_VARIABLE = "MUSTER_OUTCOME_FILE"
UNDECIDED = "terminated"


class Code(IntEnum):
    """75 is EX_TEMPFAIL of sysexits.h: try again later."""

    FINISHED = 0
    BROKEN = 1
    BAD_INPUT = 2
    REQUEUE = 75
    HANG = 76
    STOPPED = 77


@dataclass(frozen=True)
class Outcome:
    outcome: str
    reason: str
    step: int
    time: float


def forget(folder: Path, rank: int) -> None:
    """A run that goes on has not ended: what an earlier start wrote down must not be taken for its end."""
    if rank == 0:
        with suppress(OSError):  # a folder that cannot be written is told of by the check of it
            _file(folder).unlink(missing_ok=True)


def end(code: Code, reason: str, step: int, folder: Path, rank: int) -> int:
    """Write down how the run ended; the exit status to leave with.

    Under a job script a decided end leaves with 0, or torchrun would start the workers again. A hang is not decided.
    """
    file = _file(folder)
    # A rank that is broken alone has to say so itself: rank 0 only sees it gone.
    if code is not Code.HANG and (rank == 0 or (code in (Code.BROKEN, Code.BAD_INPUT) and not file.exists())):
        _write(file, Outcome(code.name.lower(), reason, step, time.time()))
    return 0 if FILE_VARIABLE in os.environ and code is not Code.HANG else int(code)


def stopped(reason: Reason, words: str, step: int, folder: Path, rank: int) -> int:
    """The end of a run that was told to stop and has saved.

    torchrun sends TERM too when it starts its workers again, for a lost rank or for a new node: then the next ones must
    go on, so under a job script that signal alone decides nothing. Where it came from Slurm, torchrun ends by itself.
    """
    if reason is Reason.TERMINATED and FILE_VARIABLE in os.environ:
        if rank == 0:
            _write(_file(folder), Outcome(UNDECIDED, reason.text, step, time.time()))
        return int(Code.REQUEUE)
    code = Code.REQUEUE if reason.requeue else Code.STOPPED
    return end(code, words or reason.text, step, folder, rank)


def decided() -> Outcome | None:
    """What this job has already decided: a rank that torchrun starts again after that has nothing to do."""
    if FILE_VARIABLE not in os.environ:
        return None
    found = read(Path(os.environ[FILE_VARIABLE]))
    return None if found is None or found.outcome == UNDECIDED else found


def read(file: Path) -> Outcome | None:
    try:
        return Outcome(**json.loads(file.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None


def _file(folder: Path) -> Path:
    return Path(os.environ.get(FILE_VARIABLE, folder / "outcome.json"))


def _write(file: Path, outcome: Outcome) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    temporary = file.with_name(f".{file.name}.{os.getpid()}")
    temporary.write_text(json.dumps(asdict(outcome)) + "\n", encoding="utf-8")
    temporary.replace(file)
