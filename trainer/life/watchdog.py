"""End a rank that makes no progress, after writing its stacks and the names of the ranks that hold up the others."""

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

from trainer.life.cause import Cause, find_user_place
from trainer.life.failure import Failure, name_attempt, record
from trainer.life.hang_limit import HangLimit
from trainer.life.heartbeat import Beat, BeatBoard, SilenceDetector, explain_hang, find_limit_of_ranks_behind
from trainer.life.outcome import Code, end_after_failure
from trainer.world import World

_TICK_S = 1.0
# After this time without a tick, a rank counts as dead or stuck: even a busy interpreter lets the thread tick.
_SILENT_S = 15.0
# Silence of other ranks is checked only while this rank makes no progress itself, and not before the first step: a
# compiler may hold the interpreter's lock for a long time.
_STALLED_S = 5.0
# Time for the other ranks to see an alarm and write their stacks, and then to read the beats of all ranks.
_GATHER_S = 4.0
_LINGER_S = 2.0
# The timer fires late enough for the thread to act first.
_TIMER_DELAY_S = 2 * (_TICK_S + _GATHER_S + _LINGER_S)
_TIMER_DELAY_ALONE_S = 3 * _TICK_S
_WRITE_TIMEOUT_S = 60.0
_STDERR = 2


class Watchdog:
    """A watchdog that expects a call of `beat` in every step and phase.

    It has two detectors, because each has a blind spot. A thread knows the other ranks and writes files, but cannot run
    while something holds the interpreter's lock. A timer in C needs no lock, but can only print the stacks to stderr
    and end the process.
    """

    def __init__(
        self, world: World, folder: Path, hang_s: float = 0.0, is_terminated: Callable[[], bool] = lambda: False
    ) -> None:
        self._world = world
        self._run_folder = folder
        self._folder = folder / "hang"
        self._created_at = time.time()
        self._hang_limit = HangLimit(hang_s)
        self._is_terminated = is_terminated
        self._board = BeatBoard(world) if world.store is not None and world.size > 1 else None
        self._silence = SilenceDetector()
        self._place = (0, 0, "start")  # count, step, phase: one tuple, so that the thread never reads half of a change
        self._beat_at = self._armed_at = time.monotonic()
        self._step_s = 0.0  # time in this step, without phases that have their own limit
        self._phase_limit_s: float | None = None
        self._user_place = ""
        self._tick = 0
        self._answered_at = time.monotonic()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def start(self) -> Watchdog:
        """Start watching and return self."""
        self._arm_timer()
        if self._board is not None:
            self._board.publish(self._make_beat())
        self._thread.start()
        return self

    def beat(self, step: int, phase: str, limit_s: float | None = None) -> None:
        """Record that this rank begins a phase; `limit_s` is the limit of a phase that may take longer than a step."""
        now = time.monotonic()
        count, last_step, last_phase = self._place
        is_limit_unstable = False
        if last_phase != "start" and self._phase_limit_s is None:
            self._step_s += now - self._beat_at
        if step != last_step:
            if self._step_s:
                self._hang_limit.add_step(self._step_s)
                is_limit_unstable = self._hang_limit.is_unstable
            self._step_s = 0.0
        has_other_limit = is_limit_unstable or limit_s != self._phase_limit_s
        self._place = (count + 1, step, phase)
        self._beat_at = now
        self._phase_limit_s = limit_s
        # Arming the timer starts a thread, which takes 80 us: too much for every short step.
        if has_other_limit or now - self._armed_at > _TICK_S:
            self._arm_timer()

    def close(self) -> None:
        """Stop watching."""
        self._closed.set()
        faulthandler.cancel_dump_traceback_later()
        self._thread.join()

    def _limit_s(self) -> float:
        return self._hang_limit.limit_s() if self._phase_limit_s is None else self._phase_limit_s

    def _arm_timer(self) -> None:
        self._armed_at = time.monotonic()
        delay_s = self._limit_s() + (_TIMER_DELAY_ALONE_S if self._board is None else _TIMER_DELAY_S)
        faulthandler.dump_traceback_later(delay_s, exit=True, file=_STDERR)

    def _watch(self) -> None:
        while not self._closed.wait(min(_TICK_S, self._limit_s() / 10)):
            self._check(time.monotonic())

    def _check(self, now: float) -> None:
        age, limit_s = now - self._beat_at, self._limit_s()
        if age > limit_s and not self._may_wait(age):
            self._end_hung_rank(f"no progress for {age:.0f} s (limit {limit_s:.0f} s)")
        if self._phase_limit_s is None and age > self._hang_limit.limit_after_term_s() and self._is_terminated():
            reason = f"received SIGTERM and made no progress for {age:.0f} s: exiting without a save"
            end_after_failure(self._run_folder, self._record_failure(Cause.LOST_PEER, reason), self._created_at)
            self._exit(reason)
        if self._board is None:
            return
        is_stalled = age > _STALLED_S and self._hang_limit.step_count > 0
        reason = self._exchange_beats(self._board, now, check_silence=is_stalled)
        if reason and not self._closed.is_set():
            self._end_hung_rank(reason)

    def _may_wait(self, age: float) -> bool:
        """Return whether a rank behind this one may take as long as this, for example to download samples."""
        if self._board is None:
            return False
        try:
            beats = self._board.read_beats()
        except RuntimeError:
            return False
        is_allowed = age <= find_limit_of_ranks_behind(beats, self._place[0])
        if is_allowed:
            self._arm_timer()
        return is_allowed

    def _exchange_beats(self, board: BeatBoard, now: float, check_silence: bool) -> str:
        """Publish this rank's progress; return why the run cannot continue, or an empty string."""
        self._tick += 1
        silent: list[Beat] = []
        try:
            board.publish(self._make_beat())
            alarm = board.read_alarm()
            if check_silence and self._world.rank == 0:
                silent = self._silence.silent_for(_SILENT_S, board.read_beats(), now)
        except RuntimeError as error:
            silent_s = now - self._answered_at
            if silent_s <= _SILENT_S:
                return ""
            cause = str(error).strip().splitlines()[0]
            return f"rank 0 on {self._world.members[0].host} has not answered for {silent_s:.0f} s ({cause})"
        self._answered_at = now
        return alarm or (f"{len(silent)} ranks have been silent for {_SILENT_S:.0f} s" if silent else "")

    def _make_beat(self) -> Beat:
        count, step, phase = self._place
        limit_s = self._phase_limit_s or 0.0
        return Beat(self._world.rank, self._world.host, count, step, phase, self._tick, limit_s, self._user_place)

    def _end_hung_rank(self, reason: str) -> None:
        # This thread runs, so the timer must not interrupt it. It is armed again in case the filesystem hangs too.
        faulthandler.dump_traceback_later(_WRITE_TIMEOUT_S, exit=True, file=_STDERR)
        self._user_place = find_user_place(sys._current_frames().get(threading.main_thread().ident or 0))
        failure = self._record_failure(Cause.HANG, reason)
        try:
            self._write_stacks(reason)
            where = f"stacks in {self._folder}"
        except (OSError, RuntimeError, AttributeError) as error:
            # A full or hanging disk may be the cause of the hang; the rank has to end anyway.
            where = f"stacks cannot be written to {self._folder}: {error}"
        message = f"{reason}; {self._report_hang(reason)}{where}"
        # All ranks that are alive have recorded their progress by now, so the rank that holds them up can be named.
        end_after_failure(self._run_folder, failure, self._created_at)
        self._exit(message)

    def _write_stacks(self, reason: str) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        with (self._folder / f"rank-{self._world.rank:05d}.txt").open("a", encoding="utf-8") as file:
            file.write(f"{time.strftime('%FT%T')} {self._make_beat()}: {reason}\n")
            file.flush()
            faulthandler.dump_traceback(file, all_threads=True)
        self._write_collectives()

    def _report_hang(self, reason: str) -> str:
        """Raise the alarm and return a text that names the ranks that hold up the others.

        Ranks that are alive keep ticking after an alarm, so a rank that does not tick is silent.
        """
        if self._board is None:
            return ""
        try:
            self._board.raise_alarm(reason)
            ticks_before = {beat.rank: beat.tick for beat in self._board.read_beats()}
            self._keep_ticking(self._board, _GATHER_S)
            beats = self._board.read_beats()
        except RuntimeError:
            return "the store does not answer, so the state of the other ranks is unknown; "
        silent = [beat for beat in beats if beat.tick == ticks_before[beat.rank] and beat.rank != self._world.rank]
        text = explain_hang(beats, silent)
        if self._world.rank == min(beat.rank for beat in beats if beat not in silent):
            with contextlib.suppress(OSError):
                (self._folder / "report.txt").write_text(f"{reason}\n{text}\n", encoding="utf-8")
        # The first rank to exit breaks the collectives of the others, and the store ends with rank 0, so all ranks must
        # have read the store before.
        time.sleep(_LINGER_S if self._world.rank else _LINGER_S + _TICK_S)
        return f"{text}; "

    def _keep_ticking(self, board: BeatBoard, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self._tick += 1
            board.publish(self._make_beat())
            time.sleep(_TICK_S / 4)

    def _write_collectives(self) -> None:
        """Write the last collectives of this rank, for torch.distributed.flight_recorder.fr_trace."""
        if "TORCH_FR_BUFFER_SIZE" not in os.environ:
            return
        c10d: Any = torch._C._distributed_c10d
        dump = c10d._dump_nccl_trace if self._world.device.type == "cuda" else c10d._dump_fr_trace
        (self._folder / f"collectives-rank-{self._world.rank}").write_bytes(dump())

    def _record_failure(self, cause: Cause, reason: str) -> Failure:
        count, step, phase = self._place
        failure = Failure(
            time=round(time.time(), 3),
            attempt=name_attempt(),
            rank=self._world.rank,
            host=self._world.host,
            step=max(step - 1, 0),
            cause=cause,
            error=f"{reason}, in {phase} of step {step}",
            place=self._user_place,
            beats=count,
            hosts=tuple(member.host for member in self._world.members),
        )
        record(self._run_folder, failure)
        return failure

    def _exit(self, message: str) -> None:
        if self._closed.is_set():
            return
        print(f"watchdog: {self._make_beat()}: {message}", file=sys.stderr, flush=True)
        sys.stdout.flush()
        # An orderly exit would wait for threads that hang in C.
        os._exit(Code.HANG)
