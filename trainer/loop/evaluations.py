"""The evaluations of a run while it trains: when one is due, its result, and the figure that decides the best."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from trainer.api import Trainer
from trainer.config.schema import Config
from trainer.evaluation.evaluator import Evaluator
from trainer.evaluation.text_sampler import TextSampler
from trainer.life.hang_limit import BEFORE_STEPS_S, REMOTE_BATCH_S
from trainer.life.stop import StopReason
from trainer.life.watchdog import Watchdog
from trainer.metrics.meter import Meter
from trainer.metrics.recorder import Recorder


@dataclass(kw_only=True)
class Evaluations:
    """The evaluations of one rank; every rank evaluates at the same steps. Without an evaluator, none is ever due."""

    config: Config
    trainer: Trainer
    recorder: Recorder
    meter: Meter
    watchdog: Watchdog
    evaluator: Evaluator | None
    sampler: TextSampler | None = None
    """The writer of text samples, if there are prompts."""
    last: dict[str, Any] = field(default_factory=dict)
    """Step and figures of the last evaluation; empty before the first."""
    _compiled_phases: set[str] = field(default_factory=set)
    """The phases that have run in this process, so that they do not compile again."""

    def is_due(self, *, is_saving: bool = False) -> bool:
        """Return whether the current step is to be evaluated; `is_saving` means that it is about to be saved.

        Every saved step is evaluated if the best checkpoint is kept, because a save can be later than planned.
        """
        step, settings = self.trainer.step, self.config.evaluation
        if self.evaluator is None or self.last.get("step") == step or step == 0:
            return False
        is_compared = is_saving and bool(self.config.checkpoint.best)
        return step % settings.every == 0 or step == self.config.steps or is_compared

    def run(self, poll_stop: Callable[[], StopReason | None]) -> StopReason | None:
        """Evaluate the current step and record the result, or return the stop request that ended the evaluation.

        All ranks call `poll_stop` after each batch and get the same answer.
        """
        if self.evaluator is None:
            return None
        step = self.trainer.step
        stop: StopReason | None = None
        batch_limit_s = REMOTE_BATCH_S if self.evaluator.is_remote else None
        # The first batch may compile the model without gradients.
        self._begin_phase(step, "evaluation", batch_limit_s)

        def is_stopped() -> bool:
            nonlocal stop
            self.watchdog.beat(step, "evaluation", batch_limit_s)
            stop = poll_stop()
            return stop is not None

        result = self.evaluator.run(is_stopped)
        if result is not None:
            self.last = {"step": step, **result.values()}
            self.recorder.evaluation(step, {**result.values(), "samples": result.samples, "seconds": result.seconds})
            self.recorder.say(f"evaluation at step {step}: {result}")
            self._write_texts(step, is_stopped)
        # A limit of its own keeps the time of the evaluation out of the step times that the hang limit derives from.
        self.watchdog.beat(step, "evaluation", BEFORE_STEPS_S)
        self.meter.clock.restart()
        return stop

    def _write_texts(self, step: int, is_stopped: Callable[[], bool]) -> None:
        """Let the model continue the prompts, if there are any; a stop request leaves out the texts of this step."""
        if self.sampler is None:
            return
        # The first token may compile the model, or at least its head.
        self._begin_phase(step, "text samples", None)
        texts = self.sampler.run(is_stopped)
        if texts is not None:
            self.recorder.texts(step, texts)
            for prompt, text in texts.items():
                self.recorder.say(f"text at step {step}: {prompt!r} -> {text!r}")

    def _begin_phase(self, step: int, phase: str, limit_s: float | None) -> None:
        """Tell the watchdog that a phase begins, and give the first one of this process the time to compile."""
        self.watchdog.beat(step, phase, limit_s if phase in self._compiled_phases else BEFORE_STEPS_S)
        self._compiled_phases.add(phase)

    @property
    def best_metric(self) -> float | None:
        """The figure of the current step by which the best checkpoint is chosen; None if it was not evaluated."""
        is_current = self.last.get("step") == self.trainer.step
        return self.last.get(self.config.checkpoint.best) if is_current else None
