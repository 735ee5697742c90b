"""The step loop of a run: a batch, an optimizer step, a vote, and the reaction to their results."""

from __future__ import annotations

import os
import sys
from contextlib import nullcontext
from dataclasses import dataclass, replace

import torch

from trainer.api import Trainer
from trainer.config.errors import ConfigError
from trainer.config.schema import Config
from trainer.data.loader import Batch, Loader
from trainer.life.cause import Cause
from trainer.life.hang_limit import REMOTE_BATCH_S
from trainer.life.health import Action, Health, Verdict
from trainer.life.outcome import Code
from trainer.life.slow_link import PROBE_LIMIT_S, LinkWatch, measure_links
from trainer.life.stop import StopListener, StopReason, explain_slow_stop
from trainer.life.straggler import StragglerDetector
from trainer.life.trace_request import TraceRequests
from trainer.life.vote import Ballot, Vote, VoteResult
from trainer.life.watchdog import Watchdog
from trainer.loop.corruptions import Corruptions
from trainer.loop.end import End
from trainer.loop.evaluations import Evaluations
from trainer.loop.saves import Saves
from trainer.loop.stop_check import StopCheck
from trainer.metrics.device_values import Reading
from trainer.metrics.meter import Meter
from trainer.metrics.recorder import Recorder
from trainer.metrics.tracer import Tracer
from trainer.replay.corruption import CorruptionDetected
from trainer.replay.replays import Replays
from trainer.sample_losses import average_by_source
from trainer.step import StepAbandoned

_UPDATES_UNTIL_SLOW = 3


@dataclass(kw_only=True)
class StepLoop:
    """The loop that trains until the last step, a stop request, or a loss that ends the run."""

    config: Config
    trainer: Trainer
    recorder: Recorder
    meter: Meter
    watchdog: Watchdog
    health: Health
    loader: Loader
    evaluations: Evaluations
    saves: Saves
    stop: StopListener
    vote: Vote
    stragglers: StragglerDetector
    links: LinkWatch
    tracer: Tracer
    trace_requests: TraceRequests
    stop_check: StopCheck
    replays: Replays
    corruptions: Corruptions
    _verdict: Verdict | None = None
    """This rank's verdict that ends the run or rolls it back, until all ranks obey it."""
    _verdict_step: int = 0
    _is_busy: bool = False
    """Whether a save was under way on any rank when the ranks last agreed."""
    _slow_updates: int = 0
    """Updates of the pace in a row at which a stop would take too long."""

    def run(self) -> End:
        """Train, save the final state, and return how the run ended."""
        # The previous attempt may have been stopped before or during the evaluation of its last step.
        end = self._evaluate(is_saving=False)
        while end is None:
            try:
                end = self._run_to_end()
            except CorruptionDetected as error:
                self._abandon_votes()
                end = self.corruptions.react(error.corruption)
        return end

    def _run_to_end(self) -> End | None:
        end = self._train_to_last_step() or self._obey_verdict(self._decide())
        # The result of the last step can be a rollback to an earlier one.
        if end is None and self.trainer.step >= self.config.steps:
            finished = End(Code.FINISHED, f"all {self.config.steps} steps done")
            end = self._evaluate(is_saving=False) or self._finish(finished)
        return end

    def _train_to_last_step(self) -> End | None:
        trainer, meter, watchdog, saves = self.trainer, self.meter, self.watchdog, self.saves
        first_step = trainer.step + 1
        while trainer.step < self.config.steps:
            step = trainer.step + 1
            watchdog.beat(step, "data", REMOTE_BATCH_S if self.loader.is_remote else None)
            position = self.loader.position
            with meter.phase("data"):
                batch = self._next_batch()
            if self.replays.is_due(step):
                watchdog.beat(step, "replay", REMOTE_BATCH_S if self.loader.is_remote else None)
            try:
                with self.replays.around(step, position) if self.replays.is_active else nullcontext():
                    watchdog.beat(step, "step", self.tracer.find_limit_s(step))
                    with self.tracer.around(step), meter.step(step, is_traced=self.tracer.is_active):
                        result = trainer.run_step(batch.tensors)
                        loss = trainer.mean_over_ranks(result.loss)
            except CorruptionDetected:
                self.loader.seek(position)  # if the run continues, it repeats the step
                raise
            except StepAbandoned:
                # The resumed run repeats the step, and so does this one if corruption found at its end undoes the stop.
                self.loader.seek(position)
                return self._stop_within_step(step)
            self._confirm(step)
            self.recorder.samples(step, batch.ids.tolist())
            if step == first_step:
                self.recorder.event("first_step", step=step)
                saves.prepare()
            with meter.phase("checkpoint"):
                saves.after_step(step)
            values = {"loss": loss, "grad_norm": result.grad_norm, "skipped": result.skipped}
            if result.expert_load is not None:
                values["expert_load"] = result.expert_load
            if result.source_sums is not None and meter.is_recorded(step):
                values |= self._average_sources(result.source_sums, batch)
            measured = {"lr": result.rate, **self.loader.source_counts}
            for name, figure in result.compression.items():
                (values if isinstance(figure, torch.Tensor) else measured)[name] = figure
            self._judge(meter.done(step, values, measured))
            is_saving = saves.is_due and not self._is_busy
            # A step is judged before it is saved or evaluated. The metrics of a saved step must be on disk with it,
            # because a resumed run does not repeat that step.
            is_judged = is_saving or self.evaluations.is_due()
            agreed = self._decide() if is_judged else self.vote.exchange(self._fill_in_ballot())
            end = self._obey(agreed, is_judged, is_saving)
            self._update_pace()
            if end is not None:
                return end
        return None

    def _confirm(self, step: int) -> None:
        """Confirm the checkpoints before this step, if it was replayed and nothing differed."""
        if self.replays.confirmed_step == step - 1:
            error = self.trainer.checkpoints.confirm(step - 1)
            if error:
                self.recorder.say(f"NOT CONFIRMED step {step - 1}: {error}; the next replay tries again")
            self.recorder.event("replayed", step=step)

    def _abandon_votes(self) -> None:
        """Forget the votes and verdicts about steps that are repeated or not continued."""
        self.vote.drain()
        self._verdict, self._is_busy = None, False

    def _next_batch(self) -> Batch:
        try:
            return next(self.loader)
        except ConfigError as error:
            # Rank 0 prints its own error later. Another rank prints here, because only it has read its samples.
            world = self.trainer.world
            if world.rank:
                print(f"trainer: rank {world.rank} on {world.host}: {error}", file=sys.stderr, flush=True)
            raise

    def _average_sources(self, sums: torch.Tensor, batch: Batch) -> dict[str, torch.Tensor]:
        """Return the mean loss of each data set of a mixture that has samples in the batch."""
        means = average_by_source(sums, self.trainer.engine.mesh)
        counts = zip(batch.source_counts.items(), means, strict=True)
        return {f"loss/{name}": mean for (name, count), mean in counts if count}

    def _judge(self, readings: list[Reading]) -> None:
        """Judge the losses of these steps. All ranks obey the strongest verdict once they have voted on it."""
        for reading in readings:
            if self._verdict is not None:
                continue
            verdict = self.health.judge(reading.step, reading.values["loss"], reading.values["skipped"] > 0)
            if verdict.message:
                self.recorder.say(f"UNHEALTHY {verdict.message}")
                self.recorder.event("unhealthy", step=reading.step, message=verdict.message)
            if verdict.action >= Action.ROLLBACK:
                self._verdict, self._verdict_step = verdict, reading.step

    def _fill_in_ballot(self) -> Ballot:
        return Ballot(
            stop=self.stop.reason,
            busy=self.trainer.checkpoints.busy,
            work_s=self.meter.own_s,
            action=self._verdict.action if self._verdict else Action.GO,
            action_step=self._verdict_step if self._verdict else 0,
            trace=self.trace_requests.take(),
            step_s=self.meter.step_s,
        )

    def _decide(self) -> VoteResult:
        """Judge every step so far, the newest included, and return what the ranks agree on now."""
        self._judge(self.meter.flush())
        return self.vote.decide(self._fill_in_ballot())

    def _obey(self, agreed: VoteResult | None, is_judged: bool, is_saving: bool) -> End | None:
        """Act on a vote, alike on all ranks; return the end of the run, or None to continue.

        `agreed` is None in the first step, whose vote has not been read. `is_judged` means that the vote is about the
        current step, and `is_saving` that the step is to be saved.
        """
        if agreed is not None:
            self._report_stragglers(agreed)
            self._report_slow_links(agreed)
            self._begin_trace(agreed)
            self._is_busy = agreed.busy
            self.stop_check.step_s = agreed.step_s or self.stop_check.step_s
        if not is_judged and ((agreed is not None and agreed.stop) or self.stop_check.after_step()):
            # The last step is judged before it is saved. If it leads to a rollback, the next vote stops the run.
            agreed = self._decide()
        if agreed is None:
            return None
        if agreed.action >= Action.ROLLBACK:
            return self._obey_verdict(agreed)
        if agreed.stop is not None:
            return self._finish(self._end_after_stop(agreed.stop))
        is_saving = is_saving and not agreed.busy
        end = self._evaluate(is_saving)
        if end is None and is_saving:
            self.replays.check_weights()
            self.saves.start()
        return end

    def _evaluate(self, is_saving: bool) -> End | None:
        """Evaluate the current step if that is due; return the end of the run if it is asked to stop meanwhile."""
        if not self.evaluations.is_due(is_saving=is_saving):
            return None
        stop = self.evaluations.run(self._poll_stop)
        return None if stop is None else self._finish(self._end_after_stop(stop))

    def _poll_stop(self) -> StopReason | None:
        """Vote between two batches of an evaluation, so that it does not delay a stop.

        Requests that wait for the next step, such as one for a trace, are not part of it.
        """
        agreed = self.vote.exchange(Ballot(self.stop.reason, self.trainer.checkpoints.busy, self.meter.own_s))
        return None if agreed is None else agreed.stop

    def _stop_within_step(self, step: int) -> End:
        """End the run after it has given up a step because of a stop request."""
        self.recorder.event("abandoned", step=step)
        agreed = self._decide()
        if agreed.action is Action.STOP:
            return self._break(agreed)
        assert agreed.stop is not None  # noqa: S101 - a request never goes away
        end = self._end_after_stop(agreed.stop)
        if agreed.action is Action.ROLLBACK:
            self.recorder.say(f"not saved: the loss of step {agreed.action_step} asks for a rollback")
            return end
        # Without a step there is nothing to save.
        return self._finish(end) if self.trainer.step else end

    def _end_after_stop(self, stop: StopReason) -> End:
        return End.after_stop(stop, self.stop.note, can_resume=self.config.checkpoint.every != "never")

    def _update_pace(self) -> None:
        """Tell the listener how long a stop takes, and the user if it takes longer than Slurm's warning."""
        save_s, delay_s = self.saves.last_save_s, self.stop_check.delay_s
        self.stop.set_pace(save_s, delay_s)
        warning_s = self.config.stop.warning_s if "SLURM_JOB_ID" in os.environ else 0.0
        message = explain_slow_stop(warning_s, delay_s, save_s)
        self._slow_updates = self._slow_updates + 1 if message else 0
        # A single step may be long because of the compiler.
        if self._slow_updates == _UPDATES_UNTIL_SLOW:
            self.recorder.say(f"SLOW STOP {message}")
            self.recorder.event("slow_stop", delay_s=delay_s, save_s=save_s, message=message)

    def _obey_verdict(self, agreed: VoteResult) -> End | None:
        """Obey the strongest verdict of all ranks, even if this rank has reached another one."""
        if agreed.action is Action.STOP:
            return self._break(agreed)
        if agreed.action is Action.ROLLBACK:
            self._abandon_votes()  # the vote under way may repeat the verdict
            self.replays.forget_undecided()
            self.saves.roll_back(agreed.action_step)
        return None

    def _break(self, agreed: VoteResult) -> End:
        reason = f"another rank has rejected the loss of step {agreed.action_step}"
        return End(Code.BROKEN, self._verdict.message if self._verdict else reason, cause=Cause.NUMERICS)

    def _finish(self, end: End) -> End:
        if end.stop is StopReason.FOLDER_LOST:
            return end
        try:
            self.replays.check_weights()
        except CorruptionDetected as error:
            if end.stop is None or end.stop.requeue:
                raise
            if unsaved := self.corruptions.stop(error.corruption, end):
                return unsaved
        if self.saves.save_last(end.reason):
            return end
        lost = self.saves.lost
        reason = f"{end.reason}, but the last state could not be saved" + (f": {lost}" if lost else "")
        code = Code.BROKEN if end.code is Code.FINISHED else end.code
        return replace(end, code=code, reason=reason, cause=Cause.STORAGE, failure=lost)

    def _begin_trace(self, agreed: VoteResult) -> None:
        if agreed.trace is not None:
            self.meter.cancel_profile()
            self.tracer.begin(agreed.trace, self.trainer.step + 1)

    def _report_stragglers(self, agreed: VoteResult) -> None:
        for straggler in self.stragglers.observe(agreed.work_s, agreed.step_s):
            self.recorder.say(f"STRAGGLER {straggler}")
            self.recorder.event("straggler", rank=straggler.rank, host=straggler.host, message=str(straggler))

    def _report_slow_links(self, agreed: VoteResult) -> None:
        if not self.links.observe(agreed.step_s):
            return
        self.watchdog.beat(self.trainer.step, "links", PROBE_LIMIT_S)
        measured = measure_links(self.trainer.world, self.links.leaders)
        self.watchdog.beat(self.trainer.step, "step")
        for slow in self.links.judge(measured, self.stragglers.slow_hosts):
            self.recorder.say(f"SLOW LINK {slow}")
            self.recorder.event("slow_link", ranks=slow.ranks, hosts=slow.hosts, message=str(slow))
