"""The failures of a run: each rank records its own before it exits, and the first cause is found from all of them."""

from __future__ import annotations

import os
import re
import socket
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from trainer.config.errors import ConfigError
from trainer.life.cause import Cause, classify, classify_failed_save, find_place, is_pod
from trainer.metrics.json_lines import JsonLines, read_lines

FAILURES_FOLDER = "failures"
_MAX_MESSAGE_CHARACTERS = 500
_MAX_TRACEBACK_CHARACTERS = 20_000
_MAX_NAMED_RANKS = 8
# The clocks of two nodes may differ, and a run may be started again in the same folder with the same attempt id.
_CLOCK_TOLERANCE_S = 30.0
# A rank that waits in vain fails later than the rank that it waits for, but its clock may be ahead.
_CONSEQUENCES = (Cause.NETWORK, Cause.HANG, Cause.LOST_PEER)
# A restart may fix these, but not if they come again at the same step.
_PERMANENT_IF_REPEATED = (Cause.OUT_OF_MEMORY, Cause.TRAINER)


@dataclass(frozen=True, kw_only=True)
class Failure:
    """The failure of one rank, as it is stored in `failures/rank-00000.jsonl`."""

    time: float
    attempt: str
    """The start of the ranks that it belongs to."""
    rank: int
    host: str
    step: int
    """Completed steps."""
    cause: Cause
    error: str
    place: str = ""
    """File, line and function."""
    traceback: str = ""
    beats: int = 0
    """The rank's progress in a hang: the rank with the fewest beats holds up the others.

    Of several, one with a place does: it is in code outside the trainer, while the others may wait for it.
    """
    hosts: tuple[str, ...] = ()
    """The host of each rank, if this rank failed because of another one."""
    missing: tuple[tuple[int, str], ...] = ()
    """The ranks that this rank waited for in vain when it joined, with their hosts."""
    in_pod: bool = field(default_factory=is_pod)
    """Whether the rank ran on Kubernetes; whoever reads the record may not."""

    @property
    def is_consequence(self) -> bool:
        """Whether another rank is probably to blame."""
        return self.cause in _CONSEQUENCES

    @property
    def fix(self) -> str:
        """What the user can do about it; empty if the error itself says so."""
        return self.cause.find_fix(in_pod=self.in_pod)

    def __str__(self) -> str:
        place = f" ({self.place})" if self.place else ""
        fix = f"; {self.fix}" if self.fix else ""
        return f"rank {self.rank} on {self.host}: {self.cause.label}: {self.error}{place}{fix}"

    def summarise(self) -> dict[str, Any]:
        """Return the part of the failure that belongs into `outcome.json`."""
        return {
            "cause": self.cause.value,
            "rank": self.rank,
            "host": self.host,
            "error": self.error,
            "place": self.place,
            "fix": self.fix,
        }


def summarise_cause(cause: Cause, error: str) -> dict[str, Any]:
    """Return the cause of a run's end that no single rank is to blame for, as in `Failure.summarise`."""
    return {"cause": cause.value, "rank": None, "host": None, "error": error, "place": "", "fix": cause.fix}


def describe(error: BaseException, *, rank: int, step: int, hosts: Sequence[str] = ()) -> Failure:
    """Return an error as the failure of this rank; `hosts` are the hosts of all ranks, if they have joined."""
    cause = classify(error)
    return Failure(
        time=round(time.time(), 3),
        attempt=name_attempt(),
        rank=rank,
        host=socket.gethostname(),
        step=step,
        cause=cause,
        error=_shorten(error),
        place=find_place(error),
        traceback="".join(traceback.format_exception(error))[-_MAX_TRACEBACK_CHARACTERS:],
        hosts=tuple(hosts) if cause in _CONSEQUENCES else (),
        missing=getattr(error, "missing", ()),  # of a WorldError, whose module needs torch
    )


def describe_failed_save(reason: str, *, rank: int, host: str, step: int) -> Failure:
    """Return the failure of a rank that could not write its part of a checkpoint, as its writer explains it."""
    return Failure(
        time=round(time.time(), 3),
        attempt=name_attempt(),
        rank=rank,
        host=host,
        step=step,
        cause=classify_failed_save(reason),
        error=f"step {step} was not saved: {reason}"[:_MAX_MESSAGE_CHARACTERS],
    )


def report(folder: Path, failure: Failure, error: BaseException) -> None:
    """Record the failure of this rank, print it, and let torchrun know.

    The traceback is printed only if it can explain anything: if one of a thousand ranks fails, all others lose a peer.
    """
    record(folder, failure)
    inform_torchrun(error)
    if isinstance(error, ConfigError):
        return  # the caller prints it, because its text is for the user
    if failure.cause not in (*_CONSEQUENCES, Cause.OUT_OF_MEMORY):
        print(failure.traceback, file=sys.stderr)
    print(f"trainer: FAILED on {failure}", file=sys.stderr, flush=True)


def inform_torchrun(error: BaseException) -> None:
    """Let torchrun name this error in its summary, if this process runs under torchrun."""
    if "TORCHELASTIC_ERROR_FILE" in os.environ:
        from torch.distributed.elastic.multiprocessing.errors import get_error_handler  # noqa: PLC0415 - needs torch

        get_error_handler().record_exception(error)


def record(folder: Path, failure: Failure) -> None:
    """Append the failure to the file of its rank; a rank that fails must not fail again because of a full disk."""
    try:
        file = JsonLines(folder / FAILURES_FOLDER / f"rank-{failure.rank:05d}.jsonl")
        file.append({**asdict(failure), "cause": failure.cause.value})
        file.close()
    except OSError as error:
        print(f"trainer: the failure cannot be written to {folder / FAILURES_FOLDER}: {error}", file=sys.stderr)


def read_failures(folder: Path, rank: int | None = None) -> list[Failure]:
    """Return the failures of all ranks or of one, the oldest first; incomplete lines are left out."""
    names = {each.name for each in fields(Failure)}
    failures = []
    for path in sorted((folder / FAILURES_FOLDER).glob("rank-*.jsonl" if rank is None else f"rank-{rank:05d}.jsonl")):
        for line in read_lines(path):
            values = {name: value for name, value in line.items() if name in names}
            try:
                values |= {"cause": Cause(values["cause"]), "hosts": tuple(values.get("hosts", ()))}
                values["missing"] = tuple((int(number), str(host)) for number, host in values.get("missing", ()))
                failures.append(Failure(**values))
            except (KeyError, TypeError, ValueError):
                continue
    return sorted(failures, key=lambda failure: failure.time)


def select_attempt(failures: Sequence[Failure], attempt: str, began: float) -> list[Failure]:
    """Return the failures of one start of the ranks, which began at this time."""
    since = began - _CLOCK_TOLERANCE_S
    return [failure for failure in failures if failure.attempt == attempt and failure.time >= since]


def find_first(failures: Sequence[Failure]) -> Failure | None:
    """Return the failure that caused the others, from the failures of one start of the ranks.

    A rank that lost its peers or waited for them in vain is never the cause if another rank has an error of its own.
    If all failures are of that kind, then the ranks without a record are to blame: they could not write one.
    """
    errors = [failure for failure in failures if not failure.is_consequence]
    if errors or not failures:
        return min(errors, key=lambda failure: failure.time, default=None)
    return _find_lost_rank(failures) or _find_blocking_rank(failures)


def list_first_causes(failures: Sequence[Failure]) -> list[Failure]:
    """Return the first cause of each start of the ranks that failed, the oldest first."""
    attempts: dict[str, list[Failure]] = {}
    for failure in failures:
        attempts.setdefault(failure.attempt, []).append(failure)
    return [first for group in attempts.values() if (first := find_first(group)) is not None]


def is_repeated(first: Failure, failures: Sequence[Failure]) -> bool:
    """Return whether an earlier start of the ranks ended with the same error at the same step and place."""
    return first.cause in _PERMANENT_IF_REPEATED and any(
        _identify(failure) == _identify(first) for failure in failures if failure.attempt != first.attempt
    )


def name_attempt(variables: Mapping[str, str] = os.environ) -> str:
    """Return a name for the start of a rank with this environment: the same on all ranks, different after a restart."""
    run = variables.get("TORCHELASTIC_RUN_ID") or variables.get("MASTER_PORT") or str(os.getpid())
    return f"{run}.{variables.get('TORCHELASTIC_RESTART_COUNT', '0')}"


def _identify(failure: Failure) -> tuple[Cause, str, str, int]:
    # The text of CUDA's error differs each time: it contains process ids and the free memory.
    error = "" if failure.cause is Cause.OUT_OF_MEMORY else failure.error
    return failure.cause, error, failure.place, failure.step


def _find_lost_rank(failures: Sequence[Failure]) -> Failure | None:
    last = max(failures, key=lambda failure: len(failure.hosts))
    lost = sorted(set(range(len(last.hosts))) - {failure.rank for failure in failures})
    if not lost:
        return None
    others = ", ".join(f"rank {rank} on {last.hosts[rank]}" for rank in lost[1:_MAX_NAMED_RANKS])
    also = f", as did {others}" + ", ..." * (len(lost) > _MAX_NAMED_RANKS) if others else ""
    error = f"ended without a record{also}: its process was killed or is stuck, or its node was lost"
    return Failure(
        time=failures[0].time,
        attempt=last.attempt,
        rank=lost[0],
        host=last.hosts[lost[0]],
        step=last.step,
        cause=Cause.LOST_PEER,
        error=error,
        in_pod=last.in_pod,
    )


def _find_blocking_rank(failures: Sequence[Failure]) -> Failure:
    order = [Cause.NETWORK, Cause.HANG, Cause.LOST_PEER]
    first = min(
        failures, key=lambda failure: (order.index(failure.cause), failure.beats, _is_waiting(failure), failure.time)
    )
    if not first.missing:
        return first
    # The rank that did not join is to blame, not the one that waited for it.
    rank, host = first.missing[0]
    return replace(first, rank=rank, host=host, place="", traceback="")


def _is_waiting(failure: Failure) -> bool:
    return failure.cause is Cause.HANG and not failure.place


def _shorten(error: BaseException) -> str:
    """Return the type and the first line of the error's text, or all problems of a configuration."""
    lines = [re.sub(r"\s+", " ", line.strip()) for line in str(error).splitlines() if line.strip()]
    if isinstance(error, ConfigError):
        return "; ".join(lines)[:_MAX_MESSAGE_CHARACTERS]
    return ": ".join([type(error).__name__, *lines[:1]])[:_MAX_MESSAGE_CHARACTERS]
