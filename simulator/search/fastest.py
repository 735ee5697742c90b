"""Find the fastest layout of a search space that fits in memory."""

from __future__ import annotations

from dataclasses import dataclass

from simulator.layout import Layout
from simulator.memory.peak import predict_memory
from simulator.parameters import count_parameters
from simulator.search.space import MICRO_BATCHES, RECOMPUTE, Passes, Shape, Space, Zero
from simulator.search.trainer_config import unsupported_reason
from simulator.step.prediction import Prediction, predict

GIB = 2**30
MEMORY_MARGIN = 0.07
"""Share of the memory that is left free: about the error of the memory model."""


@dataclass(frozen=True)
class TimedLayout:
    """A layout with its predicted step."""

    layout: Layout
    prediction: Prediction

    @property
    def sample_s(self) -> float:
        return self.prediction.step_s / self.layout.global_batch


@dataclass(frozen=True)
class FastestLayouts:
    """The fastest layout of all, and the fastest that the trainer can run; None if nothing fits in memory."""

    any: TimedLayout | None = None
    runnable: TimedLayout | None = None


def find_fastest(space: Space) -> FastestLayouts:
    """Return the fastest layouts of a space.

    Recomputing more never makes a step faster that fits in memory with less, so the remaining settings are skipped.
    """
    fastest = FastestLayouts()
    for shape in space.shapes():
        for sharding in space.shardings(shape):
            if _is_too_large(space, shape, sharding):
                space.counts.considered += len(MICRO_BATCHES) * len(RECOMPUTE)
                continue
            for candidate in _candidates(space, shape, sharding):
                fastest = _update(fastest, candidate, space)
    return fastest


def _update(fastest: FastestLayouts, candidate: TimedLayout, space: Space) -> FastestLayouts:
    if _is_faster(candidate, fastest.any):
        fastest = FastestLayouts(candidate, fastest.runnable)
    if _is_faster(candidate, fastest.runnable) and not unsupported_reason(space.model, candidate.layout):
        fastest = FastestLayouts(fastest.any, candidate)
    return fastest


def _is_faster(candidate: TimedLayout, other: TimedLayout | None) -> bool:
    return other is None or candidate.sample_s < other.sample_s


def _candidates(space: Space, shape: Shape, sharding: tuple[Zero, int]) -> list[TimedLayout]:
    candidates: list[TimedLayout] = []
    for passes in space.micros(shape):
        fitting = [timed for each in passes if (timed := _first_in_memory(space, shape, sharding, each))]
        if not fitting:
            # A larger micro-batch needs even more memory.
            break
        candidates += fitting
    return candidates


def _first_in_memory(space: Space, shape: Shape, sharding: tuple[Zero, int], passes: Passes) -> TimedLayout | None:
    """Return the layout with the least recomputing that fits in memory, or None."""
    allowed = space.recompute()
    for remaining, recompute in zip(reversed(range(len(allowed))), allowed, strict=True):
        space.counts.considered += 1
        layout = space.layout(shape, sharding, passes, recompute)
        needed = predict_memory(space.model, layout, space.system)
        # On small GPUs, what CUDA takes besides the tensors exceeds the margin, so both are checked.
        if needed.total > _usable_bytes(space) or not needed.fits:
            continue
        space.counts.timed += 1
        space.counts.considered += remaining
        return TimedLayout(layout, predict(space.model, layout, space.system, space.rates, needed))
    return None


def _usable_bytes(space: Space) -> float:
    return space.system.gpu.memory_gb * GIB * (1 - MEMORY_MARGIN)


def _is_too_large(space: Space, shape: Shape, sharding: tuple[Zero, int]) -> bool:
    """Return whether weights and optimizer alone exceed the memory, which is cheaper than predicting all of it."""
    zero, shard = sharding
    ranks = (shard or shape.dp * shape.cp) if zero else 1
    parameters = count_parameters(space.model).total / (shape.tp * shape.pp * max(1, shape.ep))
    return (space.base.weight_bytes + space.base.optimizer_bytes) * parameters / ranks > _usable_bytes(space)
