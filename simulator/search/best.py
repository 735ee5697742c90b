"""The fastest layout of a space that fits in memory."""

from __future__ import annotations

from dataclasses import dataclass

from simulator.layout import Layout
from simulator.memory.peak import predict_memory
from simulator.parameters import TRAINING_STATE_BYTES, count_parameters
from simulator.search.space import MICRO, RECOMPUTE, Passes, Shape, Space, Zero
from simulator.search.trainer_config import unsupported
from simulator.step.prediction import Prediction, predict

GIB = 2**30
LEFT_ALONE = 0.07
"""Share of the memory that no layout is planned into: about what the memory model is wrong by."""
ADAMW = TRAINING_STATE_BYTES["adamw"]
"""In memory as in a checkpoint."""


@dataclass(frozen=True)
class Found:
    layout: Layout
    prediction: Prediction

    @property
    def sample_s(self) -> float:
        return self.prediction.step_s / self.layout.global_batch


@dataclass(frozen=True)
class Best:
    """The fastest of all, and the fastest that the trainer can run; None where nothing fits."""

    any: Found | None = None
    runnable: Found | None = None


def best(space: Space) -> Best:
    """More recomputing never makes a step faster that fits without: the rest is timed or does not fit."""
    found = Best()
    for shape in space.shapes():
        for sharding in space.shardings(shape):
            if _too_large(space, shape, sharding):
                space.counts.considered += len(MICRO) * len(RECOMPUTE)
                continue
            for candidate in _of(space, shape, sharding):
                found = _better(found, candidate, space)
    return found


def _better(found: Best, candidate: Found, space: Space) -> Best:
    if _faster(candidate, found.any):
        found = Best(candidate, found.runnable)
    if _faster(candidate, found.runnable) and not unsupported(space.model, candidate.layout):
        found = Best(found.any, candidate)
    return found


def _faster(one: Found, other: Found | None) -> bool:
    return other is None or one.sample_s < other.sample_s


def _of(space: Space, shape: Shape, sharding: tuple[Zero, int]) -> list[Found]:
    found: list[Found] = []
    for passes in space.micros(shape):
        fitting = [one for each in passes if (one := _first_that_fits(space, shape, sharding, each))]
        if not fitting:
            # A larger micro-batch needs more memory still.
            break
        found += fitting
    return found


def _first_that_fits(space: Space, shape: Shape, sharding: tuple[Zero, int], passes: Passes) -> Found | None:
    allowed = space.recompute()
    for left, recompute in zip(reversed(range(len(allowed))), allowed, strict=True):
        space.counts.considered += 1
        layout = space.layout(shape, sharding, passes, recompute)
        needed = predict_memory(space.model, layout, space.system)
        # What CUDA takes beside the tensors weighs more on small GPUs than the share that is left alone.
        if needed.total > _room(space) or not needed.fits:
            continue
        space.counts.timed += 1
        space.counts.considered += left
        return Found(layout, predict(space.model, layout, space.system, space.rates, needed))
    return None


def _room(space: Space) -> float:
    return space.system.gpu.memory_gb * GIB * (1 - LEFT_ALONE)


def _too_large(space: Space, shape: Shape, sharding: tuple[Zero, int]) -> bool:
    """Whether not even weights and optimizer fit: cheaper to say than the whole memory."""
    zero, shard = sharding
    ranks = (shard or shape.dp * shape.cp) if zero else 1
    held = count_parameters(space.model).total / (shape.tp * shape.pp * max(1, shape.ep))
    return ADAMW * held / ranks > _room(space)
