"""How a run ended: an exit code for whoever started it, and a file for the job script that decides what comes next."""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, dataclass
from enum import IntEnum
from pathlib import Path

from trainer.life.reason import Reason

FILE_VARIABLE = "MUSTER_OUTCOME_FILE"


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

    @property
    def code(self) -> Code:
        return Code[self.outcome.upper()]


def code_for(reason: Reason) -> Code:
    return Code.REQUEUE if reason.requeue else Code.STOPPED


def end(code: Code, reason: str, step: int, folder: Path, rank: int) -> int:
    """Write down how the run ended; the exit status to leave with.

    Under a job script a decided end leaves with 0, or torchrun would start the workers again; a crash or a hang is not
    decided and keeps its code, so that it does.
    """
    under_job = os.environ.get(FILE_VARIABLE, "")
    file = Path(under_job) if under_job else folder / "outcome.json"
    # A rank that is broken alone has to say so itself: rank 0 only sees it gone.
    if code is not Code.HANG and (rank == 0 or (code in (Code.BROKEN, Code.BAD_INPUT) and not file.exists())):
        _write(file, Outcome(code.name.lower(), reason, step, time.time()))
    return 0 if under_job and code is not Code.HANG else int(code)


def decided() -> Outcome | None:
    """What this job has already decided: a rank that torchrun starts again after that has nothing to do."""
    under_job = os.environ.get(FILE_VARIABLE, "")
    return read(Path(under_job)) if under_job else None


def read(file: Path) -> Outcome | None:
    try:
        return Outcome(**json.loads(file.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None


def _write(file: Path, outcome: Outcome) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    temporary = file.with_name(f".{file.name}.{os.getpid()}")
    temporary.write_text(json.dumps(asdict(outcome)) + "\n", encoding="utf-8")
    temporary.replace(file)
