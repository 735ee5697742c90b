"""How a run ended: an exit code for its caller, and a file from which the job script decides whether to requeue."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any

from trainer.life.cause import Cause
from trainer.life.failure import Failure, find_first, is_repeated, read_failures, select_attempt
from trainer.life.stop import StopReason
from trainer.metrics.json_lines import read_lines

FILE_VARIABLE = "MUSTER_OUTCOME_FILE"
# Outcomes that decide nothing: the ranks may be restarted, and then the file is deleted.
TERMINATED = "terminated"
FAILED = "failed"
_FIRST_READERS = 8
_READER_INTERVAL = 64
# Ranks lose their peers within a moment of each other. A longer wait would delay the restart.
_RECORD_TIMEOUT_S = 1.5
_POLL_S = 0.1


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
    """The content of the outcome file; train.sbatch reads the first three values in this order."""

    outcome: str
    reason: str
    step: int
    time: float
    failure: dict[str, Any] | None = None
    """The first cause of a run that did not end as intended: cause, rank, host, error, place and fix."""


def clear(folder: Path, rank: int) -> None:
    """Delete the outcome of an earlier start: a run that continues has not ended."""
    if rank == 0:
        with suppress(OSError):  # the check of the folder reports one that is not writable
            _outcome_file(folder).unlink(missing_ok=True)
            # train.sbatch sets it aside, and puts it back if this start is refused.
            (folder / ".outcome-before.json").unlink(missing_ok=True)


def end(  # noqa: PLR0913
    code: Code, reason: str, step: int, folder: Path, rank: int, *, failure: dict[str, Any] | None = None
) -> int:
    """Write how the run ended and return the exit status of the process.

    Under a job script, a process whose run has ended exits with 0, because torchrun would otherwise restart its
    workers. A hang is not an end: the workers have to be restarted.
    """
    file = _outcome_file(folder)
    # A rank that fails alone has to write the file itself: rank 0 does not know the reason.
    if code is not Code.HANG and (rank == 0 or (code in (Code.BROKEN, Code.BAD_INPUT) and not file.exists())):
        _write(file, RunOutcome(code.name.lower(), reason, step, time.time(), failure))
    return 0 if FILE_VARIABLE in os.environ and code is not Code.HANG else int(code)


def choose_code(stop: StopReason, *, can_resume: bool = True) -> Code:
    """Return how a run ends after a stop request.

    A run that saves nothing (`can_resume` is False) would start over and reach the same time limit again, so it is
    requeued only if it was preempted.
    """
    return Code.REQUEUE if stop.requeue and (can_resume or stop.is_preemption) else Code.STOPPED


def end_after_stop(  # noqa: PLR0913
    stop: StopReason,
    reason: str,
    step: int,
    folder: Path,
    rank: int,
    *,
    code: Code,
    failure: dict[str, Any] | None = None,
) -> int:
    """Write the outcome of a run that obeyed a stop request, and return the exit status of the process.

    torchrun also sends SIGTERM when it restarts its workers because of a lost rank or a new node, and then the new
    workers must continue. So under a job script, SIGTERM alone decides nothing. If Slurm sent it, torchrun ends too.
    """
    if stop is StopReason.TERMINATED and FILE_VARIABLE in os.environ:
        if rank == 0:
            _write(_outcome_file(folder), RunOutcome(TERMINATED, stop.text, step, time.time(), failure))
        return int(Code.REQUEUE)
    return end(code, reason, step, folder, rank, failure=failure)


def end_after_failure(folder: Path, own: Failure, began: float) -> tuple[int, RunOutcome]:
    """Write the first cause of all ranks' failures; return the exit status of this process and the outcome.

    Every failed rank calls this after it has recorded its own failure, so the last one knows all of them. `began` is
    when this process started. An error that a restart cannot fix ends the run; otherwise torchrun or the job script
    may start the ranks again.
    """
    file = _outcome_file(folder)
    outcome = _read(file)
    if outcome is None or outcome.time < began:
        outcome = None
    if outcome is None or _is_open(outcome):
        outcome = _write_first_cause(file, folder, own, began, outcome)
    if _is_open(outcome):
        return int(Code.BROKEN), outcome
    return (0 if FILE_VARIABLE in os.environ else int(Code[outcome.outcome.upper()])), outcome


def end_unrecorded() -> int:
    """Return the exit status of a run whose folder belongs to another one now, so that its outcome is not written."""
    return 0 if FILE_VARIABLE in os.environ else int(Code.BROKEN)


def read_decided() -> RunOutcome | None:
    """Return the outcome this job has already decided on, if any: a rank restarted after that has nothing to do."""
    if FILE_VARIABLE not in os.environ:
        return None
    outcome = _read(Path(os.environ[FILE_VARIABLE]))
    return None if outcome is None or _is_open(outcome) else outcome


def write_if_missing(failure: Failure) -> None:
    """Write the outcome of a job whose ranks could not, because this failure of one of them ended them all."""
    file = Path(os.environ[FILE_VARIABLE])
    # The disk may be full or the file damaged, and the failure was printed.
    with suppress(OSError, ValueError, TypeError):
        if _read(file) is None:
            _write(file, _make_outcome(file.parent, failure, read_failures(file.parent)))


def _is_open(outcome: RunOutcome) -> bool:
    return outcome.outcome in (TERMINATED, FAILED)


def _write_first_cause(file: Path, folder: Path, own: Failure, began: float, written: RunOutcome | None) -> RunOutcome:
    if not _reads_other_ranks(own.rank):
        if written is not None and written.failure is not None and own.is_consequence:
            return written
        outcome = _make_outcome(folder, own, read_failures(folder, own.rank))
        with suppress(OSError):  # the disk may be full, and the reason is printed as well
            _write(file, outcome)
        return outcome
    outcome = _find_first_cause(folder, own, began)
    with suppress(OSError):
        _write(file, outcome)
        # Another rank may have recorded an earlier cause in the meantime, but written its outcome first.
        latest = _find_first_cause(folder, own, began)
        if latest.failure != outcome.failure:
            _write(file, latest)
            outcome = latest
    return outcome


def _reads_other_ranks(rank: int) -> bool:
    """Return whether this rank reads the failures of all others: if a thousand did, the filesystem would suffer.

    Several do, on several nodes, because any of them may be lost.
    """
    return rank < _FIRST_READERS or rank % _READER_INTERVAL == 0


def _find_first_cause(folder: Path, own: Failure, began: float) -> RunOutcome:
    while True:
        failures = read_failures(folder)
        attempt = select_attempt(failures, own.attempt, began)
        first = find_first(attempt) or own  # there is none if its own failure could not be written
        # Ranks without a record may be about to write one, so they are not called lost at once.
        is_complete = not first.is_consequence or len({failure.rank for failure in attempt}) >= len(own.hosts) - 1
        if is_complete or time.time() > own.time + _RECORD_TIMEOUT_S:
            return _make_outcome(folder, first, failures)
        time.sleep(_POLL_S)


def _make_outcome(folder: Path, first: Failure, failures: Sequence[Failure]) -> RunOutcome:
    broken = Code.BROKEN.name.lower()
    if is_repeated(first, failures):
        reason = f"{first}; not restarted: the error is the same as in an earlier attempt"
        return RunOutcome(broken, reason, first.step, time.time(), first.summarise())
    is_permanent = first.cause.is_permanent or _needs_too_much_memory(folder, first, failures)
    name = broken if is_permanent else FAILED
    return RunOutcome(name, str(first), first.step, time.time(), first.summarise())


def _needs_too_much_memory(folder: Path, first: Failure, failures: Sequence[Failure]) -> bool:
    """Return whether the run is out of memory and has never completed a step, so that its settings are to blame.

    After a completed step, memory may be fragmented, or processes of the previous start may still hold some.
    """
    if first.cause is not Cause.OUT_OF_MEMORY or any(failure.step for failure in (first, *failures)):
        return False
    # A rank that fails while it is built does not know the completed steps of earlier starts.
    return not any(line.get("event") == "first_step" for line in read_lines(folder / "events.jsonl"))


def _read(file: Path) -> RunOutcome | None:
    try:
        return RunOutcome(**json.loads(file.read_text(encoding="utf-8")))
    except (FileNotFoundError, NotADirectoryError):
        return None


def _outcome_file(folder: Path) -> Path:
    return Path(os.environ.get(FILE_VARIABLE, folder / "outcome.json"))


def _write(file: Path, outcome: RunOutcome) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    temporary = file.with_name(f".{file.name}.{socket.gethostname()}.{os.getpid()}")
    temporary.write_text(json.dumps(asdict(outcome)) + "\n", encoding="utf-8")
    temporary.replace(file)
