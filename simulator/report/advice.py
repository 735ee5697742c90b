"""What to change first: time that the run wasted, and settings that the model predicts to be faster, by time saved."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from simulator.report.machines import RunMachine
from simulator.report.measured import MeasuredRun
from simulator.report.predicted import PredictedRun, predict_run
from trainer.config.check import check, check_world
from trainer.config.errors import ConfigError
from trainer.config.schema import Config

MIN_SAVING = 0.02
"""Share of the time below which a change is not worth mentioning."""
RARER = 4
"""Factor by which the advice spaces out checkpoints that cost time."""


@dataclass(frozen=True)
class Change:
    """A suggested change and what it saves."""

    saves: float
    """Share of the time per sample."""
    text: str


def list_changes(run: MeasuredRun, predicted: PredictedRun, machine: RunMachine) -> list[Change]:
    """Return changes by what they save; predicted savings come last if the prediction does not explain the run."""
    wasted, settings = _worthwhile(_wasted(run, predicted)), _worthwhile(_settings(run, predicted, machine))
    return wasted + settings if run.step_s > predicted.high_s else _worthwhile([*wasted, *settings])


def _worthwhile(changes: Iterable[Change]) -> list[Change]:
    return sorted((change for change in changes if change.saves >= MIN_SAVING), key=lambda change: -change.saves)


def _wasted(run: MeasuredRun, predicted: PredictedRun) -> Iterator[Change]:
    """Yield changes that the measurement alone justifies."""
    step, split = run.step_s, run.split
    data, saves = split.get("data", 0.0), split.get("checkpoint", 0.0)
    yield Change(
        data / step,
        f"Raise data.workers (now {run.config.data.workers}) and data.ahead ({run.config.data.ahead}): "
        f"{_ms(data)} of a step of {_ms(step)} ({data / step:.0%}) is spent waiting for data.",
    )
    every = run.config.checkpoint.interval
    rarer = saves * (1 - 1 / RARER)
    yield Change(
        rarer / step,
        f"Raise checkpoint.every from {every} to {RARER * every}: saves take {_ms(saves)} of a step of {_ms(step)}, "
        f"{_ms(rarer)} ({rarer / step:.0%}) of which this would save.",
    )
    if run.slowest:
        lost = (1 - 1 / run.slowest) * split["compute"] / step
        yield Change(
            lost if run.slowest > run.config.watchdog.straggler else 0.0,
            f"Find out why one rank is {run.slowest:.2f}x slower than the others: all of them wait for it, "
            f"{lost:.0%} of a step.",
        )
    measured_parts = [part for part in ("compute", "communication") if part in split]
    for part in measured_parts:
        # Without a measurement of communication, it is part of the measured compute.
        hidden = predicted.split["communication"] if part == "compute" and len(measured_parts) == 1 else 0.0
        expected = predicted.split[part] + hidden
        excess = split[part] - expected
        if predicted.high_s < step:
            yield Change(
                excess / step,
                f"Investigate {part} before changing settings: it takes {_ms(split[part])} of a step, "
                f"{_ms(expected)} was predicted; "
                f"the excess is {excess / step:.0%} of a step.",
            )


def _settings(run: MeasuredRun, predicted: PredictedRun, machine: RunMachine) -> Iterator[Change]:
    """Yield other settings with the saving that the model predicts for them."""
    before = predicted.step_s / run.config.batch.size
    for description, config, micro in _alternatives(run, machine):
        if check(config) or check_world(config, run.ranks, run.per_node):
            continue
        try:
            then = predict_run(run, machine, config, micro)
        except ConfigError:
            continue
        if then.fits:
            now = then.step_s / config.batch.size
            rates = f"{1 / before:,.1f} to {1 / now:,.1f} samples a second"
            yield Change(1 - now / before, f"{description}: {1 - now / before:.0%} less time predicted, {rates}.")


def _alternatives(run: MeasuredRun, machine: RunMachine) -> Iterator[tuple[str, Config, int]]:
    config, micro = run.config, run.micro
    parallel, batch = config.parallel, config.batch
    for times in (2, 4):
        wider = replace(config, batch=replace(batch, micro=times * micro))
        yield f"Set batch.micro to {times * micro} instead of {micro}", wider, times * micro
    if run.ranks > 1:
        more = replace(config, batch=replace(batch, size=4 * batch.size, micro=micro))
        text = f"Accumulate gradients: batch.size {4 * batch.size} instead of {batch.size}, if the loss allows it"
        yield text, more, micro
    if parallel.recompute != "none":
        plain = replace(config, parallel=replace(parallel, recompute="none"))
        yield f"Set parallel.recompute to none instead of {parallel.recompute}", plain, micro
    if parallel.strategy in ("fsdp", "hsdp"):
        yield "Use parallel.strategy ddp: it fits", replace(config, parallel=replace(parallel, strategy="ddp")), micro
    # A profile does not say how fast compiled or lower-precision kernels are: it was measured without them.
    if not machine.is_calibrated and config.compile.mode == "none":
        yield "Set compile.mode to blocks", replace(config, compile=replace(config.compile, mode="blocks")), micro
    if not machine.is_calibrated and config.precision == "fp32":
        yield "Set precision to bf16", replace(config, precision="bf16"), micro


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:,.1f} ms"
