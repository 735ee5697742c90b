"""What a resume has begun and not finished: read by the sweep when the program was killed in between."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from slurm.power.bring_up import Want
from slurm.power.memory import Memory

_NAME = "journal"


@contextmanager
def noted(memory: Memory, wants: Sequence[Want]) -> Iterator[None]:
    """Inside it the wants stand in the journal; they stay there when it is left by an error or a kill."""
    mark = uuid.uuid4().hex
    memory.keep(_NAME, memory.load(_NAME) | {mark: [[list(want.unit), want.zone] for want in wants]})
    yield
    memory.keep(_NAME, {key: value for key, value in memory.load(_NAME).items() if key != mark})


def unfinished(memory: Memory) -> list[Want]:
    return [Want(tuple(unit), zone) for wants in memory.load(_NAME).values() for unit, zone in wants]


def clear(memory: Memory) -> None:
    if memory.load(_NAME):
        memory.keep(_NAME, {})
