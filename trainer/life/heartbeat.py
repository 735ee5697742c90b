"""Exchange the heartbeats of all ranks through the store, and find the ranks that hold up the others."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any

from trainer.world import World

_STORE_TIMEOUT_S = 10.0
_MAX_NAMED_RANKS = 8


@dataclass(frozen=True)
class Beat:
    """The progress of a rank."""

    rank: int
    host: str
    count: int
    """Beats so far. Every rank makes the same beats in the same order, so the rank with the fewest is behind."""
    step: int
    phase: str
    tick: int
    """Counts up about once a second while the process of the rank is alive."""
    limit_s: float = 0.0
    """Seconds that the phase may take if it has a limit of its own; 0 means the limit of a step."""
    place: str = ""
    """In a hang, the file, line and function outside the trainer that the rank is in."""

    def __str__(self) -> str:
        return f"rank {self.rank} on {self.host} (step {self.step}, {self.phase})"


class BeatBoard:
    """The keys in the store under which ranks publish their beats.

    It has its own connection to the store, because others may be blocked for minutes.
    """

    def __init__(self, world: World) -> None:
        self._members = world.members
        self._store: Any = world.store.clone()
        self._store.set_timeout(timedelta(seconds=_STORE_TIMEOUT_S))

    def publish(self, beat: Beat) -> None:
        """Publish the newest beat of this rank."""
        self._store.set(f"beat/{beat.rank}", json.dumps(asdict(beat)))

    def raise_alarm(self, message: str) -> None:
        """Tell all ranks that the run hangs, so that each one writes its stacks."""
        self._store.set("alarm", message)

    def read_alarm(self) -> str:
        """Return the message of an alarm that some rank raised, or an empty string."""
        return self._store.get("alarm").decode() if self._store.check(["alarm"]) else ""

    def read_beats(self) -> list[Beat]:
        """Return the newest beat of every rank; a rank without a beat is in the phase "start"."""
        keys = [f"beat/{member.rank}" for member in self._members]
        if self._store.check(keys):
            return [Beat(**json.loads(text)) for text in self._store.multi_get(keys)]
        are_present = [self._store.check([key]) for key in keys]
        return [
            Beat(**json.loads(self._store.get(key))) if is_present else Beat(member.rank, member.host, 0, 0, "start", 0)
            for key, is_present, member in zip(keys, are_present, self._members, strict=True)
        ]


class SilenceDetector:
    """A detector of ranks whose ticks have stopped, because their process or node has died or is stuck."""

    def __init__(self) -> None:
        self._last_change: dict[int, tuple[int, float]] = {}

    def silent_for(self, limit_s: float, beats: Sequence[Beat], now: float) -> list[Beat]:
        """Return the beats of ranks whose tick has not changed for more than `limit_s` seconds."""
        silent = []
        for beat in beats:
            tick, since = self._last_change.get(beat.rank, (-1, now))
            if tick != beat.tick:
                self._last_change[beat.rank] = (beat.tick, now)
            elif now - since > limit_s:
                silent.append(beat)
        return silent


def find_limit_of_ranks_behind(beats: Sequence[Beat], count: int) -> float:
    """Return the longest limit of ranks that have made fewer than `count` beats, for which a rank may have to wait."""
    return max((beat.limit_s for beat in beats if beat.count < count), default=0.0)


def explain_hang(beats: Sequence[Beat], silent: Sequence[Beat]) -> str:
    """Return a message that names the ranks that hold up the others."""
    if silent:
        return f"silent, because their process or node is dead or stuck: {_name_ranks(silent)}"
    fewest, most = min(beat.count for beat in beats), max(beat.count for beat in beats)
    if fewest == most:
        stuck = [beat for beat in beats if beat.place]
        if 0 < len(stuck) < len(beats):
            return f"in code outside the trainer: {_name_ranks(stuck)}, at {stuck[0].place}; the others may wait for it"
        place = f"step {beats[0].step}, {beats[0].phase}"
        return f"all {len(beats)} ranks are at the same place ({place}): check the network"
    behind = [beat for beat in beats if beat.count == fewest]
    furthest = next(beat for beat in beats if beat.count == most)
    return f"behind: {_name_ranks(behind)}; the furthest is at step {furthest.step}, {furthest.phase}"


def _name_ranks(beats: Sequence[Beat]) -> str:
    names = ", ".join(str(beat) for beat in beats[:_MAX_NAMED_RANKS])
    return names if len(beats) <= _MAX_NAMED_RANKS else f"{names} and {len(beats) - _MAX_NAMED_RANKS} more"
