"""What a resume has begun and not finished: the sweep reads it when the program was killed, or found a shortage."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from slurm.power.bring_up import Want
from slurm.power.memory import Memory

_NAME = "journal"


@contextmanager
def noted(memory: Memory, wants: Sequence[Want]) -> Iterator[list[Want]]:
    """Inside it the wants stand in the journal, and stay when it is left by an error or a kill; otherwise those stay
    that are put into the list."""
    mark, left = uuid.uuid4().hex, list[Want]()
    memory.keep(_NAME, memory.load(_NAME) | _entry(mark, wants))
    yield left
    others = {key: value for key, value in memory.load(_NAME).items() if key != mark}
    memory.keep(_NAME, others | _entry(mark, left))


def unfinished(memory: Memory) -> list[Want]:
    found = (want for wants in memory.load(_NAME).values() for want in wants)
    return [Want(tuple(unit), *more) for unit, *more in found]


def rewrite(memory: Memory, wants: Sequence[Want]) -> None:
    if wants or memory.load(_NAME):
        memory.keep(_NAME, _entry(uuid.uuid4().hex, wants))


def _entry(mark: str, wants: Sequence[Want]) -> dict[str, Any]:
    return {mark: [[list(want.unit), want.zone, want.since] for want in wants]} if wants else {}
