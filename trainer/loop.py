"""A run from its configuration to its end: start, steps, saves, stops. What there is to decide is decided elsewhere."""

from __future__ import annotations

import os
import shutil
import sys
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import torch

from trainer import processor, settle, weights
from trainer.api import Trainer
from trainer.checkpoint import room
from trainer.checkpoint.event import Event
from trainer.checkpoint.group import Group
from trainer.config.errors import ConfigError, ConfigProblem
from trainer.config.load import changes, dump, to_dict
from trainer.config.schema import Config
from trainer.config.show import show
from trainer.data.loader import Batch, Loader
from trainer.data.registry import open_source
from trainer.data.source import Source
from trainer.life import outcome
from trainer.life.health import Action, Health
from trainer.life.outcome import Code
from trainer.life.reason import Reason
from trainer.life.signals import Stop
from trainer.life.straggler import Stragglers
from trainer.life.trace import Trace
from trainer.life.vote import Agreed, Ballot, Vote
from trainer.life.watchdog import Watchdog
from trainer.metrics.device_values import Reading
from trainer.metrics.meter import Meter
from trainer.metrics.recorder import Recorder
from trainer.models.shape import shape_of
from trainer.world import World, start


@dataclass(frozen=True)
class End:
    code: Code
    reason: str
    stop: Reason | None = None

    @classmethod
    def told(cls, stop: Reason, words: str) -> End:
        return cls(Code.REQUEUE if stop.requeue else Code.STOPPED, words or stop.text, stop)


class Run:
    """One process of a run. `began` is when the process started, for the record of where a restart's time goes."""

    def __init__(self, config: Config, began: float) -> None:
        self.config = config
        self.folder = Path(config.run.folder.format(name=config.name)).absolute()
        self.rank = int(os.environ.get("RANK", "0"))
        self.recorder = Recorder(self.folder, self.rank, config)
        self._began = began
        self._accepted = False
        self._reached = 0
        self._loss: float | None = None
        self._save_due = False
        self._saved = self._unsaved = -1
        self._save_s = 0.0

    def go(self) -> int:
        """The exit status to leave with. Whatever a person has to mend is a ConfigError, and leaves no trace of it."""
        source = open_source(self.config)
        trace = Trace(self.folder, self.rank)
        try:
            trace.make_folder()
            return self._start(source)
        except ConfigError as error:
            if self._accepted:
                status = self._conclude(End(Code.BAD_INPUT, "; ".join(str(error).splitlines())))
                # A save that is under way is good. The others are not waited for: they sit in a collective.
                self._trainer.checkpoints.close()
                return status
            self.recorder.close()
            trace.remove()
            raise

    def _start(self, source: Source) -> int:
        self.recorder.event("started", began=self._began, attempt=_attempt())
        self.recorder.event("imported")
        world = self._join()
        try:
            with closing(Stop(self.folder, self.rank, self.config.stop.margin_s).listen()) as stop:
                return self._run(source, world, stop)
        except torch.OutOfMemoryError as error:
            return self._conclude(End(Code.BROKEN, f"out of memory on {world.host}: {_first_line(error)}; {_ADVICE}"))

    def _join(self) -> World:
        run = self.config.run
        needs_group = self.config.parallel.strategy in ("fsdp", "hsdp")
        world = start(run.device, run.join_timeout_s, hang_folder=self.folder / "hang", group_of_one=needs_group)
        hosts = sorted({member.host for member in world.members})
        machine = {"device": world.device.type, "cpu": processor.name()}
        self.recorder.event("joined", world_size=world.size, hosts=hosts, **machine)
        _repeatable(run.deterministic, world)
        return world

    def _run(self, source: Source, world: World, stop: Stop) -> int:
        # Together: where only some can write to it, all of them leave and the first one says who.
        room.check(self.folder, 0, Group(world.rank, world.size, world.group))
        settled = settle.settle(self.config, world, source, self.folder)
        self.config, micro = settled.config, settled.micro
        self._data = {"samples": source.length, "seed": self.config.run.seed, "seq_len": self.config.data.seq_len}
        watched = Watchdog(world, self.folder, self.config.watchdog.hang_s, lambda: stop.terminated)
        with closing(watched.start()) as self._watchdog:
            self._health = Health(self.config.health, scaled=self.config.precision == "fp16")
            self._trainer = Trainer.of(self.config, world, micro)
            self.recorder.event("built", strategy=self.config.parallel.strategy, micro=micro)
            position = self._resume()
            self._trainer.check_folder()
            self._accept(settled)
            self._meter = Meter(self.recorder, self.config, world.device, world.size, self._flops())
            self._stragglers = Stragglers([m.host for m in world.members], self.config.watchdog.straggler)
            with closing(self._load_from(source, position)) as self._loader:
                end = self._steps(stop, Vote(world))
            status = self._conclude(end)
            # Not after an error: the others sit in a collective, and would be waited for.
            self._trainer.close()
            return status

    def _conclude(self, end: End) -> int:
        """Writes down how it ended before the ranks part: whoever dies in parting does not change that."""
        self.recorder.event("ended", outcome=end.code.name.lower(), reason=end.reason, step=self._reached)
        self.recorder.say(f"{end.code.name.lower()} at step {self._reached}: {end.reason}")
        self.recorder.close()
        if end.stop is not None:
            return outcome.stopped(end.stop, end.reason, self._reached, self.folder, self.rank)
        return outcome.end(end.code, end.reason, self._reached, self.folder, self.rank)

    def _resume(self) -> int:
        """Take up the newest good checkpoint; the position in the data."""
        trainer, settings = self._trainer, self.config.checkpoint
        if settings.resume == "never" and trainer.checkpoints.any_published():
            message = f"never, but {trainer.checkpoints.path} has checkpoints, which new ones would replace"
            raise ConfigError([ConfigProblem("checkpoint.resume", message, "use another run.folder, or remove them")])
        found = None if settings.resume == "never" else trainer.checkpoints.newest()
        for bad in found.skipped if found else ():
            self.recorder.say(f"DAMAGED checkpoint passed over: {bad}")
            self.recorder.event("damaged", checkpoint=bad)
        if found is None:
            if settings.resume == "must":
                where = trainer.checkpoints.path
                raise ConfigError(
                    [ConfigProblem("checkpoint.resume", f"must, but {where} has no checkpoint", "use auto")]
                )
            if settings.initial:
                weights.load(settings.initial, trainer)
            return 0
        extra = trainer.load_found(found)
        self._health.load_state(extra["health"])
        if extra["data"] != self._data:
            # Somebody may want that; the position then counts in another order, so samples come again or never.
            self.recorder.say(f"DATA CHANGED since the checkpoint: {extra['data']} then, {self._data} now")
            self.recorder.event("data_changed", before=str(extra["data"]), now=str(self._data))
        self._reached = self._saved = trainer.step
        self.recorder.event("loaded", step=trainer.step, written_by=found.world_size)
        self.recorder.say(f"resumed from {found.path.name}, written by {found.world_size} ranks")
        for line in changes(trainer.checkpoints.read_state(found)["config"], to_dict(self.config)):
            self.recorder.say(f"changed since the checkpoint: {line}")
        return int(extra["position"])

    def _accept(self, settled: settle.Settled) -> None:
        """Nothing is left for a person to mend: the folder is this run's, and its settings are told."""
        self._accepted = True
        outcome.forget(self.folder, self.rank)
        self.recorder.resume(self._trainer.step, self._trainer.world.size)
        file = self.folder / "config.yaml"
        if self.rank == 0:
            settled.keep(self.folder)
            file.write_text(dump(self.config), encoding="utf-8")
        is_terminal = sys.stdout.isatty()
        width = shutil.get_terminal_size().columns if is_terminal else _LOG_WIDTH
        self.recorder.say("\n".join(show(self.config, str(file), width, is_terminal=is_terminal)))
        for line in [*settled.why, *self._trainer.engine.choices]:
            self.recorder.say(f"chosen: {line}")
            self.recorder.event("chosen", why=line)

    def _load_from(self, source: Source, position: int) -> Loader:
        layout, data = self._trainer.layout, self.config.data
        return Loader(
            source,
            self.config.run.seed,
            self.config.batch.size,
            dp_rank=layout.dp_rank(self.rank),
            dp_size=layout.dp_size,
            position=position,
            workers=data.workers,
            ahead=data.ahead,
            device=self._trainer.world.device,
        )

    def _flops(self) -> float:
        model = self.config.model
        return shape_of(model).flops_per_sample(self.config.data.seq_len or getattr(model, "seq_len", 1))

    def _steps(self, stop: Stop, vote: Vote) -> End:
        while True:
            end = self._steps_to_the_last(stop, vote)
            if end is None:
                vote.drain()
                end = self._react(self._meter.flush(), None)
            # What the last step led to can be a return to an earlier one.
            if end is not None or self._trainer.step >= self.config.steps:
                return end or self._finish(End(Code.FINISHED, f"all {self.config.steps} steps done"))

    def _steps_to_the_last(self, stop: Stop, vote: Vote) -> End | None:
        trainer, meter, watchdog = self._trainer, self._meter, self._watchdog
        first = trainer.step + 1
        while trainer.step < self.config.steps:
            step = trainer.step + 1
            watchdog.beat(step, "data")
            with meter.phase("data"):
                batch = self._next_batch()
            watchdog.beat(step, "step")
            with meter.step(step):
                result = trainer.run_step(batch.tensors)
                loss = trainer.mean_over_ranks(result.loss)
            self._reached = step
            self.recorder.samples(step, batch.ids.tolist())
            if step == first:
                self.recorder.event("first_step", step=step)
                self._trainer.prepare_saves()
            with meter.phase("checkpoint"):
                self._checkpoints(step)
            values = {"loss": loss, "grad_norm": result.grad_norm, "skipped": result.skipped}
            readings = meter.done(step, values, {"lr": result.rate})
            if self._save_due:
                # What is known of a saved step must be on the disk with it: a resumed run does not do that step again.
                readings += meter.flush()
            agreed = vote.exchange(Ballot(stop.reason(), trainer.checkpoints.busy, work_s=meter.own_s))
            if agreed is not None and agreed.stop is not None:
                # The last step is judged before it is saved. Where it leads to a rollback, the next vote stops the run.
                readings += meter.flush()
            stop.pace(self._save_s, meter.step_s)
            end = self._react(readings, agreed, stop.words)
            if end is not None:
                return end
        return None

    def _next_batch(self) -> Batch:
        try:
            return next(self._loader)
        except ConfigError as error:
            # The first rank speaks for all where all see the same; what is wrong with its samples only this one knows.
            if self.rank:
                print(f"trainer: rank {self.rank} on {self._trainer.world.host}: {error}", file=sys.stderr, flush=True)
            raise

    def _checkpoints(self, step: int) -> None:
        every = self.config.checkpoint.every
        self._save_due = self._save_due or (every > 0 and step % every == 0)
        self._tell_saves()

    def _tell_saves(self) -> None:
        for event in self._trainer.checkpoints.poll():
            self._tell(event)

    def _tell(self, event: Event) -> None:
        if event.kind == "published":
            self._save_s = event.seconds
        if event.kind == "failed":
            self._unsaved = event.step
        loud = "SAVE FAILED: " if event.kind == "failed" else ""
        self.recorder.event(f"save_{event.kind}", step=event.step, message=event.message, seconds=event.seconds)
        if event.kind in ("failed", "restarted"):
            # Every rank has a writer of its own: the one that fails says so, whichever it is.
            print(f"{loud}rank {self.rank} on {self._trainer.world.host}: {event.message}", file=sys.stderr, flush=True)

    def _react(self, readings: list[Reading], agreed: Agreed | None, words: str = "") -> End | None:
        """What the step before leads to: the same on every rank, since all have the same readings and votes."""
        for reading in readings:
            self._loss = reading.values["loss"]
            verdict = self._health.see(reading.step, self._loss, reading.values["skipped"] > 0)
            if verdict.message:
                self.recorder.say(f"UNHEALTHY {verdict.message}")
                self.recorder.event("unhealthy", step=reading.step, message=verdict.message)
            if verdict.action is Action.STOP:
                return End(Code.BROKEN, verdict.message)
            if verdict.action is Action.ROLLBACK:
                self._roll_back(reading.step)
                return None
        if agreed is not None:
            self._report_stragglers(agreed)
            if agreed.stop is not None:
                return self._finish(End.told(agreed.stop, words))
        if self._save_due and not (agreed and agreed.busy):
            self._save()
        return None

    def _save(self) -> None:
        self._save_due = False
        self._saved = self._trainer.step
        self._take_time("save")  # one that is not asynchronous is waited for
        with self._meter.phase("checkpoint"):
            extra = {"position": self._loader.position, "health": self._health.state(), "data": self._data}
            self._trainer.start_save(self._loss if self.config.checkpoint.best else None, extra)

    def _finish(self, end: End) -> End:
        """The last state, unless it is saved already; whoever stops early stops with it on the disk."""
        self._take_time("save")
        self._meter.flush()
        self.recorder.event("stopping", reason=end.reason, step=self._reached)
        if self._saved != self._trainer.step:
            self._save()
        self._finish_save()
        if end.code is Code.FINISHED and self._unsaved == self._trainer.step:
            return End(Code.BROKEN, f"{end.reason}, but the last state could not be saved")
        return end

    def _take_time(self, phase: str) -> None:
        """What comes may take longer than steps do, and is no hang."""
        self._watchdog.beat(self._reached, phase, self.config.stop.save_within_s + _LEAVE_S)

    def _finish_save(self) -> None:
        """Wait for the save under way and tell what became of it."""
        within_s = self.config.stop.save_within_s
        with self._meter.phase("checkpoint"):
            if not self._trainer.finish_save(within_s):
                self._unsaved = self._saved
                self.recorder.say(f"SAVE FAILED: the checkpoint was not written within {within_s:g} s")
        self._tell_saves()

    def _roll_back(self, spike: int) -> None:
        """To a checkpoint from before it, but on with the data after it: the same samples would lead there again.

        The loss of a step tells of the update before it: a checkpoint made right before the spike may hold the update
        that led to it, and is only taken where there is no earlier one.
        """
        self._take_time("rollback")
        self._meter.flush()
        self._finish_save()
        checkpoints = self._trainer.checkpoints
        found = checkpoints.newest(before=spike - 1) or checkpoints.newest(before=spike)
        if found is None:
            self.recorder.say("there is no checkpoint to return to; going on")
            return
        extra = self._trainer.load_found(found)
        # Losses that came after it were lower: beside them what is to come again would look like a spike.
        self._health.load_state(extra["health"])
        checkpoints.drop_after(found.step)
        self._save_due = False
        self._reached = self._saved = self._trainer.step
        self.recorder.resume(self._trainer.step, self._trainer.world.size)
        self.recorder.event("rolled_back", step=self._trainer.step, position=self._loader.position)
        self.recorder.say(f"rolled back to {found.path.name}, and on with the data after step {spike}")
        self._meter.clock.restart()

    def _report_stragglers(self, agreed: Agreed) -> None:
        for slow in self._stragglers.see(agreed.work_s):
            self.recorder.say(f"STRAGGLER {slow}")
            self.recorder.event("straggler", rank=slow.rank, host=slow.host, message=str(slow))


# Beyond the time of a save: leaving the world, or finding and loading the checkpoint to return to.
_LEAVE_S = 300.0
_LOG_WIDTH = 120
_ADVICE = "use a smaller batch.micro, parallel.recompute=full, or more ranks with parallel.strategy=fsdp"


def _repeatable(wanted: bool, world: World) -> None:
    if wanted and world.device.type == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True, warn_only=True)


def _attempt() -> str:
    """Which start of the job and which start of its ranks this is."""
    return f"{os.environ.get('SLURM_RESTART_COUNT', '0')}.{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
