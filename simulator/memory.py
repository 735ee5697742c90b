"""What one GPU of the fullest pipeline stage has to hold at its peak, and what to change where it does not fit."""

from __future__ import annotations

from dataclasses import dataclass, field

from simulator.activations import activations, logits, stack_activations
from simulator.layout import Layout
from simulator.memory_state import Held, stage, state, unreduced, vocabulary
from simulator.model import Model, Stack
from simulator.nearest import changes
from simulator.parameters import parameters
from simulator.system import System
from simulator.trainers import habits

GIB = 2**30
OUTSIDE = 2.0 * GIB
"""CUDA's context, kernels and NCCL's buffers, which the allocator does not count."""
FRAGMENTED = 1.03
"""What the allocator needs of the device over what tensors hold at their peak; it takes more while there is more."""
RESERVED = 1.15
"""What it takes where there is room: measured 1.05 to 1.27 on one H200, the more the larger the logits."""


@dataclass(frozen=True, slots=True)
class Memory:
    parts: dict[str, float]
    """Bytes by what holds them."""
    total: float
    """Peak of the allocator."""
    room: float
    """Bytes of a GPU; data sheets mean GiB where they say GB."""
    printed: float = 0.0
    """What the trainer would report of it: the peak, or what was taken of the device."""
    asked: tuple[Model, Layout, System] | None = field(default=None, repr=False, compare=False)

    @property
    def taken(self) -> float:
        """Of the device."""
        return self.total * FRAGMENTED + OUTSIDE

    @property
    def fits(self) -> bool:
        return self.taken <= self.room

    @property
    def reason(self) -> str:
        """Why it does not fit, and the nearest change with which it does; empty where it fits."""
        if self.fits:
            return ""
        largest = max(self.parts, key=self.parts.__getitem__)
        said = (
            f"memory: {self.taken / GIB:.1f} GiB; allowed: {self.room / GIB:.0f} GiB; "
            f"largest: {largest} {self.parts[largest] / GIB:.1f} GiB"
        )
        return f"{said}; {_fix(*self.asked)}" if self.asked else said


def memory(model: Model, layout: Layout, system: System) -> Memory:
    """The first stage keeps the most micro-batches, the last has the logits."""
    parts = _stage(model, layout, first=True, last=layout.pp == 1)
    total = sum(parts.values())
    if layout.pp > 1:
        others = _stage(model, layout, first=False, last=True)
        if sum(others.values()) > total:
            parts, total = others, sum(others.values())
    room = system.gpu.memory_gb * GIB
    printed = _printed(total, room, habits(layout.trainer).prints)
    return Memory(parts, total, room, printed, (model, layout, system))


def nearest(model: Model, layout: Layout, system: System) -> str:
    """The smallest change that makes it fit, as words; empty where none does."""
    return next((words for words, changed in changes(model, layout) if memory(model, changed, system).fits), "")


def _fix(model: Model, layout: Layout, system: System) -> str:
    found = nearest(model, layout, system)
    return f"fits with {found}" if found else "nothing near it fits: choose a GPU with more memory, or more stages (pp)"


def _printed(total: float, room: float, prints: str) -> float:
    """What the allocator takes ends where the device does; what tensors need does not."""
    if prints == "peak":
        return total
    return max(total, min(total * RESERVED + (OUTSIDE if prints == "device" else 0.0), room))


def _stage(model: Model, layout: Layout, *, first: bool, last: bool) -> dict[str, float]:
    held = stage(parameters(model), layout, first=first, last=last)
    parts = state(held, layout)
    if isinstance(model, Stack):
        parts["working"] = unreduced(held, layout)
        parts["activations"] = stack_activations(model, layout)
        return parts
    kept, alive = activations(model, layout, held.mixtures, first=first)
    at_loss = logits(model, layout) if last else 0.0
    if layout.framework == "torch":
        return parts | _torch_peak(held, layout, kept, alive, at_loss)
    return parts | {"working": unreduced(held, layout), "activations": kept + alive, "logits": at_loss}


def _torch_peak(held: Held, layout: Layout, kept: float, alive: float, at_loss: float) -> dict[str, float]:
    """Logits are gone when backward reaches the first layer: the larger of the two moments is the peak."""
    working, ends = unreduced(held, layout), vocabulary(held, layout)
    if at_loss + ends > alive + working:
        return {"working": ends, "activations": kept, "logits": at_loss}
    return {"working": working, "activations": kept + alive, "logits": 0.0}
