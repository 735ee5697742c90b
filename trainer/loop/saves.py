"""The saves of a run while it trains: when one is due, which one is under way, and whether the last one succeeded."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from typing import Any

from trainer.api import Trainer
from trainer.checkpoint.job import SaveEvent
from trainer.checkpoint.newest import GoodCheckpoint
from trainer.config.schema import Config
from trainer.data.loader import Loader
from trainer.life.failure import Failure, describe_failed_save
from trainer.life.health import Health
from trainer.life.watchdog import Watchdog
from trainer.loop.evaluations import Evaluations
from trainer.metrics.meter import Meter
from trainer.metrics.recorder import Recorder
from trainer.weights import ORIGIN

# Added to the time limit of a save: leaving the process group, or finding and loading the checkpoint to roll back to.
_LEAVE_TIMEOUT_S = 300.0


@dataclass(kw_only=True)
class Saves:
    """The saves of one rank: starts them, waits for them, reports their results, and rolls back to an earlier one.

    A save is due (`is_due`), then started (`started_step`), then published or failed (`failed_step`). Every rank goes
    through the same states at the same steps; only `failed_step` may differ, because each rank has its own writer.
    """

    config: Config
    trainer: Trainer
    recorder: Recorder
    meter: Meter
    watchdog: Watchdog
    health: Health
    loader: Loader
    evaluations: Evaluations
    data_identity: dict[str, Any]
    """Values that determine the order of samples; stored with each checkpoint to detect changed data on resume."""
    origin: dict[str, Any]
    """Settings of the Hugging Face model that the run started from, which an export takes over."""
    started_step: int | None
    """The step of the newest save that was started, or of the checkpoint that was loaded; None before the first."""
    failed_step: int | None = None
    lost: Failure | None = None
    """The rank that could not write its part of the last save that failed, and why, if a single one is to blame."""
    is_due: bool = False
    last_save_s: float
    """Duration of the last published save in seconds, or an estimate before the first."""
    _deadline: float | None = None
    """The end of the time for the last save, once the run is ending."""

    def prepare(self) -> None:
        """Prepare the first save, if there will be any; call it after the first step, which should not wait for it."""
        if self.config.checkpoint.every != "never":
            self.trainer.prepare_saves()

    def after_step(self, step: int) -> None:
        """Mark a save as due if the interval has passed, and report saves that have ended since the last step."""
        every = self.config.checkpoint.interval
        self.is_due = self.is_due or (every > 0 and step % every == 0)
        self._report()

    def start(self) -> None:
        """Start a save of the current step."""
        self.is_due = False
        self.started_step = self.trainer.step
        self._suspend_hang_detector("save")  # a synchronous save takes its whole time here
        with self.meter.phase("checkpoint"):
            extra = {
                "position": self.loader.position,
                "health": self.health.state(),
                "data": self.data_identity,
                ORIGIN: self.origin,
                "evaluation": self.evaluations.last,
            }
            self.trainer.start_save(self.evaluations.best_metric, extra, self._remaining_s())

    def save_last(self, reason: str) -> bool:
        """Save the final state unless it is saved already, wait for it, and return whether it is on disk.

        A run that never saves has nothing to lose.
        """
        self._begin_end("save")
        self.meter.flush()
        self.recorder.event("stopping", reason=reason, step=self.trainer.step)
        if self.config.checkpoint.every == "never":
            return True
        if self.started_step != self.trainer.step:
            self.start()
        self._finish()
        return self.failed_step != self.trainer.step

    def roll_back(self, spike_step: int) -> None:
        """Return to a checkpoint from before a loss spike, but continue with the data after it.

        The same samples would lead to the same spike. The loss of a step shows the effect of the update before it, so
        a checkpoint made right before the spike may contain the bad update: it is used only if there is no earlier one.
        """
        self._suspend_hang_detector("rollback")
        self.meter.flush()
        self._finish()
        checkpoints = self.trainer.checkpoints
        target = checkpoints.newest(before=spike_step - 1) or checkpoints.newest(before=spike_step)
        if target is None:
            self.recorder.say("there is no checkpoint to roll back to; training continues")
            self.health.accept_spike()
            return
        self._restore(target)
        self.health.count_rollback()
        self._report_rollback(target, f"continuing with the data after step {spike_step}")

    def find_confirmed(self) -> GoodCheckpoint | None:
        """Let a save under way finish, and return the newest checkpoint that a replay has confirmed, or None."""
        self._suspend_hang_detector("rollback")
        self.meter.flush()
        self._finish()
        return self.trainer.checkpoints.newest_confirmed()

    def set_aside_unconfirmed(self) -> list[int]:
        """Keep the checkpoints that may be corrupted from being resumed, and return their steps."""
        return self.trainer.checkpoints.set_aside_unconfirmed()

    def return_to(self, target: GoodCheckpoint) -> None:
        """Return to a checkpoint because of corruption, and repeat the steps since, with the same data."""
        extra = self._restore(target)
        self.loader.seek(extra["position"])
        self._report_rollback(target, "repeating the steps since")

    def _restore(self, target: GoodCheckpoint) -> dict[str, Any]:
        extra = self.trainer.restore(target)
        # Later losses were lower. Compared with them, the repeated losses after the rollback would look like a spike.
        self.health.load_state(extra["health"])
        self.evaluations.last = extra.get("evaluation", {})
        self.trainer.checkpoints.remove_after(target.step)
        self.is_due = False
        self.started_step = self.trainer.step
        self.recorder.resume(self.trainer.step, self.trainer.world.size)
        return extra

    def _report_rollback(self, target: GoodCheckpoint, note: str) -> None:
        self.recorder.event("rolled_back", step=self.trainer.step, position=self.loader.position)
        self.recorder.say(f"rolled back to {target.path.name}; {note}")
        self.meter.clock.restart()

    def close(self) -> None:
        """Let a save under way finish, as the run may end while one is written, and leave the process group."""
        self._begin_end("close")
        self.trainer.close(self._remaining_s())

    def _begin_end(self, phase: str) -> None:
        """Start the time for the last save, if it has not started, and tell the watchdog about it."""
        self._deadline = self._deadline or time.monotonic() + self.config.stop.save_within_s
        self._suspend_hang_detector(phase)

    def _remaining_s(self) -> float:
        """Return the seconds that a save may take: all of them while the run continues, the rest of them at its end."""
        if self._deadline is None:
            return self.config.stop.save_within_s
        return max(0.0, self._deadline - time.monotonic())

    def _suspend_hang_detector(self, phase: str) -> None:
        """Suspend the hang detector: the next operation may legitimately take longer than a training step."""
        self.watchdog.beat(self.trainer.step, phase, self.config.stop.save_within_s + _LEAVE_TIMEOUT_S)

    def _finish(self) -> None:
        """Wait for the save under way, if there is one, and report its result."""
        with self.meter.phase("checkpoint"):
            is_in_time = self.trainer.finish_save(self._remaining_s())
        self._report()
        if not is_in_time and self.failed_step != self.started_step:
            self.failed_step, self.lost = self.started_step, None
            limit_s = self.config.stop.save_within_s
            self.recorder.say(f"SAVE FAILED: the checkpoint was not written within {limit_s:g} s (stop.save_within_s)")

    def _blame(self, event: SaveEvent) -> Failure | None:
        if event.failed_rank is None:
            return None
        host = self.trainer.world.members[event.failed_rank].host
        return describe_failed_save(event.reason, rank=event.failed_rank, host=host, step=event.step)

    def _report(self) -> None:
        for event in self.trainer.checkpoints.poll():
            self._report_event(event)

    def _report_event(self, event: SaveEvent) -> None:
        if event.kind == "published":
            self.last_save_s = event.seconds
        if event.kind == "failed":
            self.failed_step = event.step
            self.lost = self._blame(event)
        self.recorder.event(f"save_{event.kind}", step=event.step, message=event.message, seconds=event.seconds)
        if event.kind in ("failed", "restarted"):
            # Each rank has its own writer, so the rank whose writer failed prints the message, not only rank 0.
            prefix = "SAVE FAILED: " if event.kind == "failed" else ""
            world = self.trainer.world
            print(f"{prefix}rank {world.rank} on {world.host}: {event.message}", file=sys.stderr, flush=True)
