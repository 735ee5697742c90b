"""A run of one rank from its configuration to its exit status: start, resume, train, record how it ended."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from trainer.api import Trainer
from trainer.auto_settings import ResolvedSettings, resolve_auto
from trainer.checkpoint import space
from trainer.checkpoint.group import RankGroup
from trainer.checkpoint.newest import GoodCheckpoint
from trainer.config.errors import ConfigError, ConfigProblem
from trainer.config.load import dump, list_changes, to_dict
from trainer.config.schema import Config
from trainer.config.show import show
from trainer.data.identity import identify_data, list_data_changes
from trainer.data.loader import Loader
from trainer.data.mixture import Mixture, describe_mixture
from trainer.data.registry import Sources, open_sources
from trainer.data.source import Source
from trainer.determinism import name_irreproducible_operation, require_deterministic_kernels
from trainer.evaluation.evaluator import Evaluator
from trainer.evaluation.text_sampler import TextSampler
from trainer.host import processor_name
from trainer.life import failure, outcome
from trainer.life.cause import Cause
from trainer.life.health import Health
from trainer.life.outcome import Code
from trainer.life.slow_link import LinkWatch
from trainer.life.stop import StopListener, StopReason
from trainer.life.straggler import StragglerDetector
from trainer.life.trace_request import TraceRequests
from trainer.life.vote import Vote
from trainer.life.watchdog import Watchdog
from trainer.loop.corruptions import Corruptions
from trainer.loop.end import End
from trainer.loop.evaluations import Evaluations
from trainer.loop.run_folder import RunFolder
from trainer.loop.saves import Saves
from trainer.loop.steps import StepLoop
from trainer.loop.stop_check import StopCheck
from trainer.metrics.meter import Meter
from trainer.metrics.recorder import Recorder
from trainer.metrics.tracer import Tracer
from trainer.metrics.trackers import check_packages
from trainer.models.shape import shape_of
from trainer.parallel.compile import check_backend
from trainer.replay.replays import check_equal_machines
from trainer.weights import ORIGIN, load_initial
from trainer.world import World, start

_LOG_WIDTH = 120
_SAVE_TIMEOUT_AFTER_ERROR_S = 60.0


class Session:
    """One process of a run.

    A run is accepted once all checks of its settings and files have passed. An error before that leaves no trace in the
    run's folder; a later error is recorded there as the end of the run.
    """

    def __init__(self, config: Config, began: float) -> None:
        """`began` is the wall-clock time at which the process started, to record where the time of a restart goes."""
        self._config = config
        self._began = began
        self._folder = Path(config.run.folder.format(name=config.name)).absolute()
        self._rank = int(os.environ.get("RANK", "0"))
        self._run_folder = RunFolder(self._folder, self._rank)
        self._recorder = Recorder(self._folder, self._rank, config)
        self._world: World | None = None
        self._trainer: Trainer | None = None
        self._is_accepted = False
        self._origin: dict[str, Any] = {}
        self._failure: failure.Failure | None = None

    def run(self) -> int:
        """Run to the end and return the exit status; raise ConfigError if the run cannot be accepted."""
        try:
            with self._record_failure():
                check_packages(self._config)
                check_backend(self._config.compile)
                sources = open_sources(self._config)
                self._run_folder.create()
                return self._start(sources)
        except ConfigError as error:
            if self._trainer is None or not self._is_accepted:
                self._recorder.close()
                self._run_folder.restore()
                raise
            status = self._conclude(End(Code.BAD_INPUT, "; ".join(str(error).splitlines())))
            self._finish_save()
            return status
        except Exception:
            if self._failure is None:
                raise
            status = self._conclude_failure(self._failure)
            self._finish_save()
            return status
        finally:
            self._run_folder.release()

    def _start(self, sources: Sources) -> int:
        if self._run_folder.is_ours:
            self._recorder.event("started", began=self._began, attempt=_attempt())
            self._recorder.event("imported")
        self._world = world = self._join()
        with closing(StopListener(self._folder, self._rank, self._config.stop.margin_s).listen()) as stop:
            return self._train(sources, world, stop)

    def _finish_save(self) -> None:
        """After an error, let a save under way finish. The other ranks are stuck in a collective: do not wait for them.

        The time is short, because the save of a rank that has died never becomes complete.
        """
        if self._trainer is not None:
            self._trainer.checkpoints.close(_SAVE_TIMEOUT_AFTER_ERROR_S)

    def _join(self) -> World:
        run = self._config.run
        needs_group = self._config.parallel.strategy in ("fsdp", "hsdp")
        world = start(run.device, run.join_timeout_s, hang_folder=self._folder / "hang", group_of_one=needs_group)
        self._run_folder.agree(RankGroup(world.rank, world.size, world.group))
        hosts = sorted({member.host for member in world.members})
        machine = {"device": world.device.type, "cpu": processor_name()}
        self._recorder.event("joined", world_size=world.size, hosts=hosts, **machine)
        if run.deterministic and world.device.type == "cuda":
            require_deterministic_kernels()
        return world

    def _train(self, sources: Sources, world: World, stop: StopListener) -> int:
        source = sources.training
        # All ranks check together: if some cannot write to the folder, all of them exit and rank 0 names those.
        space.check_disk(self._folder, 0, RankGroup(world.rank, world.size, world.group))
        resolved = resolve_auto(self._config, world, source, self._folder)
        self._config = config = resolved.config
        if config.health.replay_every:
            check_equal_machines(world)
        watchdog = Watchdog(world, self._folder, config.watchdog.hang_s, lambda: stop.is_terminated)
        with closing(watchdog.start()):
            self._trainer = trainer = Trainer.from_config(config, world, resolved.micro)
            trainer.checkpoints.hold(self._run_folder.fence)
            self._run_folder.on_lost(lambda: stop.request(StopReason.FOLDER_LOST))
            self._recorder.event("built", strategy=config.parallel.strategy, micro=resolved.micro)
            health = Health(config.health, scaled=config.precision == "fp16")
            data_identity = identify_data(source, config)
            resumed = self._resume(trainer, health, data_identity)
            trainer.checkpoints.continue_confirmed(trainer.step, is_used=config.health.replay_every > 0)
            if config.checkpoint.every != "never":
                trainer.check_folder()
                self._recorder.event("save_estimated", seconds=trainer.checkpoints.expected_save_s)
            sampler = TextSampler(trainer.engine, config, resolved.micro) if config.evaluation.prompts else None
            self._accept(trainer, resolved, sources.notes)
            hosts = [member.host for member in world.members]
            meter = Meter(self._recorder, config, world.device, world.size, _flops_per_sample(config), hosts)
            evaluations = Evaluations(
                config=config,
                trainer=trainer,
                recorder=self._recorder,
                meter=meter,
                watchdog=watchdog,
                evaluator=self._make_evaluator(sources.evaluation, trainer, resolved.micro),
                sampler=sampler,
                last=resumed.get("evaluation", {}),
            )
            self._describe_mixture(source)
            with (
                closing(self._open_loader(source, trainer, resumed.get("position", 0))) as loader,
                closing(Tracer(self._folder, self._rank, world.device, self._recorder.say)) as tracer,
                closing(TraceRequests(self._folder, self._rank, self._recorder.say)) as trace_requests,
            ):
                saves = Saves(
                    config=config,
                    trainer=trainer,
                    recorder=self._recorder,
                    meter=meter,
                    watchdog=watchdog,
                    health=health,
                    loader=loader,
                    evaluations=evaluations,
                    data_identity=data_identity,
                    origin=self._origin,
                    started_step=trainer.step if resumed else None,
                    last_save_s=trainer.checkpoints.expected_save_s,
                )
                replays = trainer.make_replays(loader.read_share, resolved.micro)
                for line in replays.describe():
                    self._recorder.say(line)
                vote = Vote(world)
                stop_check = StopCheck(stop=stop, vote=vote, device=world.device)
                trainer.engine.before_micro_batch = stop_check.before_micro_batch
                steps = StepLoop(
                    config=config,
                    trainer=trainer,
                    recorder=self._recorder,
                    meter=meter,
                    watchdog=watchdog,
                    health=health,
                    loader=loader,
                    evaluations=evaluations,
                    saves=saves,
                    stop=stop,
                    vote=vote,
                    stop_check=stop_check,
                    stragglers=StragglerDetector(hosts, config.watchdog.straggler),
                    links=LinkWatch(hosts, config.watchdog.straggler),
                    tracer=tracer,
                    trace_requests=trace_requests,
                    replays=replays,
                    corruptions=Corruptions(
                        replays=replays,
                        saves=saves,
                        recorder=self._recorder,
                        max_rollbacks=config.health.max_rollbacks,
                    ),
                )
                with self._record_failure(), name_irreproducible_operation():
                    end = steps.run()
            status = self._conclude(end)
            saves.close()
            return status

    def _resume(self, trainer: Trainer, health: Health, data_identity: dict[str, Any]) -> dict[str, Any]:
        """Load the newest good checkpoint and return what the loop saved with it; empty if there is none."""
        settings = self._config.checkpoint
        if settings.resume == "never" and trainer.checkpoints.any_published():
            message = f"never, but {trainer.checkpoints.path} has checkpoints, which new ones would replace"
            raise ConfigError([ConfigProblem("checkpoint.resume", message, "use another run.folder, or remove them")])
        checkpoint = None if settings.resume == "never" else trainer.checkpoints.newest()
        for damaged in checkpoint.skipped if checkpoint else ():
            self._recorder.say(f"DAMAGED checkpoint skipped: {damaged}")
            self._recorder.event("damaged", checkpoint=damaged)
        if checkpoint is not None:
            return self._load(checkpoint, trainer, health, data_identity)
        if settings.resume == "must":
            where = trainer.checkpoints.path
            raise ConfigError([ConfigProblem("checkpoint.resume", f"must, but {where} has no checkpoint", "use auto")])
        if settings.initial:
            self._origin = load_initial(settings.initial, trainer)
        return {}

    def _load(
        self, checkpoint: GoodCheckpoint, trainer: Trainer, health: Health, data_identity: dict[str, Any]
    ) -> dict[str, Any]:
        extra = trainer.restore(checkpoint)
        health.load_state(extra["health"])
        self._origin = extra.get(ORIGIN, {})
        if changes := list_data_changes(extra["data"], data_identity):
            # This may be intended, but the samples are now in another order, so some are repeated or left out.
            self._recorder.say(f"DATA CHANGED since the checkpoint: {'; '.join(changes)}")
            self._recorder.event("data_changed", before=str(extra["data"]), now=str(data_identity))
        self._recorder.event("loaded", step=trainer.step, written_by=checkpoint.world_size)
        self._recorder.say(f"resumed from {checkpoint.path.name}, written by {checkpoint.world_size} ranks")
        for note in trainer.restore_notes:
            self._recorder.say(note)
        for line in list_changes(trainer.checkpoints.read_state(checkpoint)["config"], to_dict(self._config)):
            self._recorder.say(f"changed since the checkpoint: {line}")
        return extra

    def _accept(self, trainer: Trainer, resolved: ResolvedSettings, data_notes: tuple[str, ...]) -> None:
        """Take over the folder: delete the outcome of an earlier start, write and print the settings."""
        self._is_accepted = True
        outcome.clear(self._folder, self._rank)
        self._recorder.resume(trainer.step, trainer.world.size)
        self._recorder.open_trackers(self._config)
        file = self._folder / "config.yaml"
        if self._rank == 0:
            resolved.save(self._folder)
            file.write_text(dump(self._config), encoding="utf-8")
        is_terminal = sys.stdout.isatty()
        width = shutil.get_terminal_size().columns if is_terminal else _LOG_WIDTH
        self._recorder.say("\n".join(show(self._config, str(file), width, is_terminal=is_terminal)))
        self._recorder.event("units", units=trainer.engine.units.summarize(), others=list(trainer.engine.units.others))
        for line in data_notes:
            self._recorder.say(line)
            self._recorder.event("data", note=line)
        for line in [*resolved.reasons, *trainer.describe()]:
            self._recorder.say(f"chosen: {line}")
            self._recorder.event("chosen", why=line)

    def _make_evaluator(self, source: Source | None, trainer: Trainer, micro: int) -> Evaluator | None:
        if source is None:
            return None
        evaluator = Evaluator(trainer.engine, source, self._config, micro)
        every = self._config.evaluation.every
        self._recorder.say(f"evaluation set: {evaluator.samples:,} samples, every {every} steps")
        self._recorder.event("evaluation_set", samples=evaluator.samples)
        return evaluator

    def _describe_mixture(self, source: Source) -> None:
        if isinstance(source, Mixture):
            config = self._config
            for line in describe_mixture(source, config.run.seed, config.steps * config.batch.size):
                self._recorder.say(f"mixture: {line}")
                self._recorder.event("mixture", source=line)

    def _open_loader(self, source: Source, trainer: Trainer, position: int) -> Loader:
        data = self._config.data
        return Loader(
            source,
            self._config.run.seed,
            self._config.batch.size,
            dp_rank=trainer.layout.dp_rank(self._rank),
            dp_size=trainer.layout.dp_size,
            position=position,
            workers=data.workers,
            ahead=data.ahead,
            window=data.shuffle_shards,
            device=trainer.world.device,
        )

    def _conclude(self, end: End) -> int:
        """Record how the run ended and return the exit status.

        This is called before the ranks leave the process group, so that a rank that dies while leaving changes nothing.
        """
        step = 0 if self._trainer is None else self._trainer.step
        if end.stop is StopReason.FOLDER_LOST or not self._run_folder.is_ours:
            return self._leave_folder(step)
        self._recorder.end(end.code.name.lower(), end.reason, step)
        self._recorder.say(f"{end.code.name.lower()} at step {step}: {end.reason}")
        cause = self._failure.summarise() if self._failure else None
        if end.failure is not None:
            cause = end.failure.summarise()
            if end.failure.rank == self._rank:
                failure.record(self._folder, end.failure)
        elif end.cause is not None:
            cause = failure.summarise_cause(end.cause, end.reason)
        if end.stop is not None:
            status = outcome.end_after_stop(
                end.stop, end.reason, step, self._folder, self._rank, code=end.code, failure=cause
            )
        else:
            status = outcome.end(end.code, end.reason, step, self._folder, self._rank, failure=cause)
        # Last, because trackers may wait for a network.
        self._recorder.close()
        return status

    @contextmanager
    def _record_failure(self) -> Iterator[None]:
        """Record an error of the block at once: closing threads and files may take long, and this rank may be killed.

        A run that is not accepted yet leaves no trace, so an error in its settings is not recorded.
        """
        try:
            yield
        except Exception as error:
            is_rejected = isinstance(error, ConfigError) and not self._is_accepted
            if self._failure is None and not is_rejected:
                hosts = [member.host for member in self._world.members] if self._world else ()
                step = 0 if self._trainer is None else self._trainer.step
                self._failure = failure.describe(error, rank=self._rank, step=step, hosts=hosts)
                if not self._run_folder.is_ours:
                    raise
                failure.report(self._folder, self._failure, error)
                if not isinstance(error, ConfigError):
                    outcome.end_after_failure(self._folder, self._failure, self._began)
            raise

    def _leave_folder(self, step: int) -> int:
        """End without a word in the folder, which belongs to another run now, and return the exit status."""
        if self._rank == 0:
            text = f"{StopReason.FOLDER_LOST.text} ({self._folder}); nothing more is written or removed there"
            label = Cause.FOLDER_LOST.label.upper()
            print(f"trainer: {label} at step {step}: {text}; {Cause.FOLDER_LOST.fix}", file=sys.stderr, flush=True)
        self._recorder.close()
        return outcome.end_unrecorded()

    def _conclude_failure(self, own: failure.Failure) -> int:
        """Record the first cause of all ranks' failures as the end of this attempt, and return the exit status."""
        if not self._run_folder.is_ours:
            return self._leave_folder(own.step)
        status, ended = outcome.end_after_failure(self._folder, own, self._began)
        self._recorder.end(ended.outcome, ended.reason, ended.step)
        self._recorder.say(f"{ended.outcome} at step {ended.step}: {ended.reason}")
        self._recorder.close()
        return status


def _flops_per_sample(config: Config) -> float:
    return shape_of(config.model).flops_per_sample(config.data.seq_len, is_frozen=config.lora.rank > 0)


def _attempt() -> str:
    """Return how often Slurm has restarted the job and torchrun the ranks, as "job.ranks"."""
    return f"{os.environ.get('SLURM_RESTART_COUNT', '0')}.{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"
