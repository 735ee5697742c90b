"""What to change first: what the run itself wasted, and settings that are faster by the model, by what they save."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from simulator.machines.compared import Machine
from simulator.report.measured import Measured
from simulator.report.predicted import Predicted, predicted
from trainer.config.check import check, check_world
from trainer.config.errors import ConfigError
from trainer.config.schema import Config

LEAST = 0.02
"""Share of the time below which a change is not worth the words."""
RARER = 4
"""Times as many steps between two checkpoints, where they cost something."""


@dataclass(frozen=True)
class Change:
    saves: float
    """Share of the time of a sample."""
    text: str


def changes(run: Measured, said: Predicted, machine: Machine) -> list[Change]:
    """The largest first; what the model advises comes last where it does not explain the run."""
    wasted, settings = _worthwhile(_wasted(run, said)), _worthwhile(_settings(run, said, machine))
    return wasted + settings if run.step_s > said.high_s else _worthwhile([*wasted, *settings])


def _worthwhile(found: Iterable[Change]) -> list[Change]:
    return sorted((one for one in found if one.saves >= LEAST), key=lambda one: -one.saves)


def _wasted(run: Measured, said: Predicted) -> Iterator[Change]:
    """Measured, whatever the simulator says."""
    step, split = run.step_s, run.split
    data, saves = split.get("data", 0.0), split.get("checkpoint", 0.0)
    yield Change(
        data / step,
        f"Raise data.workers (now {run.config.data.workers}) and data.ahead ({run.config.data.ahead}): "
        f"{_ms(data)} of a step of {_ms(step)} ({data / step:.0%}) are a wait for data.",
    )
    every = run.config.checkpoint.every
    rarer = saves * (1 - 1 / RARER)
    yield Change(
        rarer / step,
        f"Raise checkpoint.every from {every} to {RARER * every}: saves take {_ms(saves)} of a step of {_ms(step)}, "
        f"{_ms(rarer)} ({rarer / step:.0%}) of them would be gone.",
    )
    if run.slowest:
        lost = (1 - 1 / run.slowest) * split["compute"] / step
        yield Change(
            lost if run.slowest > run.config.watchdog.straggler else 0.0,
            f"Find out why one rank is {run.slowest:.2f}x slower than the others: all of them wait for it, "
            f"{lost:.0%} of a step.",
        )
    together = [part for part in ("compute", "communication") if part in split]
    for part in together:
        expected = said.split[part] + (said.split["communication"] if part == "compute" and len(together) == 1 else 0.0)
        beyond = split[part] - expected
        if said.high_s < step:
            yield Change(
                beyond / step,
                f"Look at {part} before any setting: {_ms(split[part])} of a step, {_ms(expected)} were predicted; "
                f"{beyond / step:.0%} of a step more than these machines need.",
            )


def _settings(run: Measured, said: Predicted, machine: Machine) -> Iterator[Change]:
    """By the model alone: other settings against those of the run."""
    before = said.step_s / run.config.batch.size
    for words, config, micro in _other(run, machine):
        if check(config) or check_world(config, run.ranks, run.per_node):
            continue
        try:
            then = predicted(run, machine, config, micro)
        except ConfigError:
            continue
        if then.fits:
            now = then.step_s / config.batch.size
            rates = f"{1 / before:,.1f} to {1 / now:,.1f} samples a second"
            yield Change(1 - now / before, f"{words}: {1 - now / before:.0%} less time predicted, {rates}.")


def _other(run: Measured, machine: Machine) -> Iterator[tuple[str, Config, int]]:
    config, micro = run.config, run.micro
    parallel, batch = config.parallel, config.batch
    for times in (2, 4):
        wider = replace(config, batch=replace(batch, micro=times * micro))
        yield f"Set batch.micro to {times * micro} instead of {micro}", wider, times * micro
    if run.ranks > 1:
        more = replace(config, batch=replace(batch, size=4 * batch.size, micro=micro))
        words = f"Accumulate: batch.size {4 * batch.size} instead of {batch.size}, if the loss bears it"
        yield words, more, micro
    if parallel.recompute != "none":
        plain = replace(config, parallel=replace(parallel, recompute="none"))
        yield f"Set parallel.recompute to none instead of {parallel.recompute}", plain, micro
    if parallel.strategy in ("fsdp", "hsdp"):
        yield "Use parallel.strategy ddp: it fits", replace(config, parallel=replace(parallel, strategy="ddp")), micro
    # What compiled or narrower kernels reach is not in a profile that was measured without them.
    if not machine.is_calibrated and config.compile.mode == "none":
        yield "Set compile.mode to blocks", replace(config, compile=replace(config.compile, mode="blocks")), micro
    if not machine.is_calibrated and config.precision == "fp32":
        yield "Set precision to bf16", replace(config, precision="bf16"), micro


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:,.1f} ms"
