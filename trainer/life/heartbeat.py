"""How far each rank is, told through the store; and from that, who holds up the others."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any

from trainer.world import World

_ANSWER_S = 10.0
_SHOWN = 8


@dataclass(frozen=True)
class Beat:
    """count: beats so far. Every rank makes the same ones in the same order, so the smallest count is behind."""

    rank: int
    host: str
    count: int
    step: int
    phase: str
    tick: int

    def __str__(self) -> str:
        return f"rank {self.rank} on {self.host} (step {self.step}, {self.phase})"


class Board:
    """Where ranks leave their beats. A connection of its own: others wait minutes on theirs."""

    def __init__(self, world: World) -> None:
        self._members = world.members
        self._store: Any = world.store.clone()
        self._store.set_timeout(timedelta(seconds=_ANSWER_S))

    def publish(self, beat: Beat) -> None:
        self._store.set(f"beat/{beat.rank}", json.dumps(asdict(beat)))

    def alarm(self, words: str) -> None:
        """Tell all ranks that something hangs: each one writes down what it is doing."""
        self._store.set("alarm", words)

    def alarmed(self) -> str:
        return self._store.get("alarm").decode() if self._store.check(["alarm"]) else ""

    def beats(self) -> list[Beat]:
        """The last beat of every rank; one that has not made any yet is at its start."""
        keys = [f"beat/{member.rank}" for member in self._members]
        if self._store.check(keys):
            return [Beat(**json.loads(text)) for text in self._store.multi_get(keys)]
        came = [self._store.check([key]) for key in keys]
        return [
            Beat(**json.loads(self._store.get(key))) if there else Beat(member.rank, member.host, 0, 0, "start", 0)
            for key, there, member in zip(keys, came, self._members, strict=True)
        ]


class Silence:
    """Which ranks have stopped ticking: their process or node is gone, or nothing in it runs any more."""

    def __init__(self) -> None:
        self._changed: dict[int, tuple[int, float]] = {}

    def longer_than(self, limit_s: float, beats: Sequence[Beat], now: float) -> list[Beat]:
        silent = []
        for beat in beats:
            tick, since = self._changed.get(beat.rank, (-1, now))
            if tick != beat.tick:
                self._changed[beat.rank] = (beat.tick, now)
            elif now - since > limit_s:
                silent.append(beat)
        return silent


def blame(beats: Sequence[Beat], silent: Sequence[Beat]) -> str:
    """Who holds up the others, in words."""
    if silent:
        return f"silent, their process or node is gone or stuck: {_names(silent)}"
    least, most = min(b.count for b in beats), max(b.count for b in beats)
    if least == most:
        place = f"step {beats[0].step}, {beats[0].phase}"
        return f"all {len(beats)} ranks are at the same place ({place}): look at the network"
    behind = [beat for beat in beats if beat.count == least]
    waiting = next(beat for beat in beats if beat.count == most)
    return f"behind: {_names(behind)}; the furthest is at step {waiting.step}, {waiting.phase}"


def _names(beats: Sequence[Beat]) -> str:
    shown = ", ".join(str(beat) for beat in beats[:_SHOWN])
    return shown if len(beats) <= _SHOWN else f"{shown} and {len(beats) - _SHOWN} more"
