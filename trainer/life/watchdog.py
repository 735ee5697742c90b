"""Ends a rank that makes no progress, after it has written down what it was doing and who holds up the others."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from trainer.life.heartbeat import Beat, Board, Silence, blame
from trainer.life.outcome import Code
from trainer.life.patience import Patience
from trainer.world import World

_TICK_S = 1.0
# A rank that does not tick has lost its node or its process; a busy interpreter still gives a thread its turn.
_SILENT_S = 15.0
# Nobody is asked about silence while this rank itself makes progress, nor before the first step: a compiler may hold
# the interpreter for long.
_STALLED_S = 5.0
# Time for the other ranks to see an alarm and write down their stacks, and then to read how far the others are.
_GATHER_S = 4.0
_LINGER_S = 2.0
# The timer comes after the thread has had its time.
_LATER_S = 2 * (_TICK_S + _GATHER_S + _LINGER_S)
_ALONE_LATER_S = 3 * _TICK_S
_WRITING_S = 60.0
_STDERR = 2


class Watchdog:
    """beat() on every step and phase. Two eyes, because each can be blind:

    a thread, which knows the other ranks and writes files, but cannot run while something holds the interpreter's lock;
    and a timer in C, which only prints the stacks to stderr and ends the process, but needs no lock.
    """

    def __init__(
        self, world: World, folder: Path, hang_s: float = 0.0, terminated: Callable[[], bool] = lambda: False
    ) -> None:
        self._world = world
        self._folder = folder / "hang"
        self._patience = Patience(hang_s)
        self._terminated = terminated
        self._board = Board(world) if world.store is not None and world.size > 1 else None
        self._silence = Silence()
        self._place = (0, 0, "start")  # count, step, phase: one tuple, so that the thread never reads half of it
        self._since = self._step_since = self._armed_at = time.monotonic()
        self._own_limit_s: float | None = None
        self._tick = 0
        self._answered_at = time.monotonic()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def start(self) -> Watchdog:
        self._arm()
        if self._board is not None:
            self._board.publish(self._beat())
        self._thread.start()
        return self

    def beat(self, step: int, phase: str, patience_s: float | None = None) -> None:
        """This rank begins a phase; patience_s where that one may take longer than steps do, such as a save."""
        now = time.monotonic()
        count, last_step, last_phase = self._place
        first_steps = False
        if step != last_step:
            if last_phase != "start" and self._own_limit_s is None:
                self._patience.saw_step(now - self._step_since)
                first_steps = self._patience.settling
            self._step_since = now
        another_limit = first_steps or patience_s != self._own_limit_s
        self._place = (count + 1, step, phase)
        self._since = now
        self._own_limit_s = patience_s
        # Arming makes a thread, 80 us: not in every short step.
        if another_limit or now - self._armed_at > _TICK_S:
            self._arm()

    def close(self) -> None:
        self._closed.set()
        faulthandler.cancel_dump_traceback_later()
        self._thread.join()

    def _limit_s(self) -> float:
        return self._patience.limit_s() if self._own_limit_s is None else self._own_limit_s

    def _arm(self) -> None:
        self._armed_at = time.monotonic()
        later_s = self._limit_s() + (_ALONE_LATER_S if self._board is None else _LATER_S)
        faulthandler.dump_traceback_later(later_s, exit=True, file=_STDERR)

    def _watch(self) -> None:
        while not self._closed.wait(min(_TICK_S, self._limit_s() / 10)):
            self._look(time.monotonic())

    def _look(self, now: float) -> None:
        age, limit_s = now - self._since, self._limit_s()
        if age > limit_s:
            self._hang(f"no progress for {age:.0f} s (limit {limit_s:.0f} s)")
        if self._own_limit_s is None and age > self._patience.after_term_s() and self._terminated():
            self._leave(f"told to terminate, and no progress for {age:.0f} s: leaving without a save")
        if self._board is None:
            return
        lost = self._exchange(self._board, now, ask=age > _STALLED_S and self._patience.steps > 0)
        if lost and not self._closed.is_set():
            self._hang(lost)

    def _exchange(self, board: Board, now: float, ask: bool) -> str:
        """Tell the others how far this rank is; why it cannot go on with them, or nothing."""
        self._tick += 1
        try:
            board.publish(self._beat())
            alarm = board.alarmed()
            silent = self._silence.longer_than(_SILENT_S, board.beats(), now) if ask and self._world.rank == 0 else []
        except RuntimeError as error:
            gone_s = now - self._answered_at
            first = self._world.members[0]
            told = str(error).strip().splitlines()[0]
            return f"rank 0 on {first.host} has not answered for {gone_s:.0f} s ({told})" if gone_s > _SILENT_S else ""
        self._answered_at = now
        return alarm or (f"{len(silent)} ranks have been silent for {_SILENT_S:.0f} s" if silent else "")

    def _beat(self) -> Beat:
        count, step, phase = self._place
        return Beat(self._world.rank, self._world.host, count, step, phase, self._tick)

    def _hang(self, why: str) -> None:
        # The thread runs, so the timer need not cut it short; it stays as the end of a filesystem that hangs too.
        faulthandler.dump_traceback_later(_WRITING_S, exit=True, file=_STDERR)
        try:
            self._write_down(why)
            where = f"stacks in {self._folder}"
        except (OSError, RuntimeError, AttributeError) as error:
            # A full or hanging disk may be the very reason; the rank has to end all the same.
            where = f"stacks cannot be written to {self._folder}: {error}"
        self._leave(f"{why}; {self._report(why)}{where}")

    def _write_down(self, why: str) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        with (self._folder / f"rank-{self._world.rank:05d}.txt").open("a", encoding="utf-8") as file:
            file.write(f"{time.strftime('%FT%T')} {self._beat()}: {why}\n")
            file.flush()
            faulthandler.dump_traceback(file, all_threads=True)
        self._dump_flights()

    def _report(self, why: str) -> str:
        """Ranks that are alive see the alarm and tick on meanwhile, so whoever does not is silent."""
        if self._board is None:
            return ""
        try:
            self._board.alarm(why)
            before = {beat.rank: beat.tick for beat in self._board.beats()}
            self._tick_on(self._board, _GATHER_S)
            beats = self._board.beats()
        except RuntimeError:
            return "the store is gone, so nothing is known of the others; "
        silent = [b for b in beats if b.tick == before[b.rank] and b.rank != self._world.rank]
        text = blame(beats, silent)
        if self._world.rank == min(beat.rank for beat in beats if beat not in silent):
            with contextlib.suppress(OSError):
                (self._folder / "report.txt").write_text(f"{why}\n{text}\n", encoding="utf-8")
        # The first to leave breaks the collectives of the others, and the store goes with rank 0: let all of them read.
        time.sleep(_LINGER_S if self._world.rank else _LINGER_S + _TICK_S)
        return f"{text}; "

    def _tick_on(self, board: Board, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self._tick += 1
            board.publish(self._beat())
            time.sleep(_TICK_S / 4)

    def _dump_flights(self) -> None:
        """The last collectives of this rank, for torch.distributed.flight_recorder.fr_trace."""
        if "TORCH_FR_BUFFER_SIZE" not in os.environ:
            return
        c10d: Any = torch._C._distributed_c10d
        dump = c10d._dump_nccl_trace if self._world.device.type == "cuda" else c10d._dump_fr_trace
        (self._folder / f"collectives-rank-{self._world.rank}").write_bytes(dump())

    def _leave(self, words: str) -> None:
        if self._closed.is_set():
            return
        print(f"watchdog: {self._beat()}: {words}", file=sys.stderr, flush=True)
        sys.stdout.flush()
        # Threads that hang in C would keep an orderly exit waiting.
        os._exit(Code.HANG)
