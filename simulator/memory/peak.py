"""What one GPU of the fullest pipeline stage has to hold at its peak, and what to change where it does not fit."""

from __future__ import annotations

from dataclasses import dataclass, field

from simulator.hardware.system import System
from simulator.layout import Layout
from simulator.memory.activations import activations, logits, stack_activations
from simulator.memory.nearest import changes
from simulator.memory.state import GRADIENTS, Held, buffered, stage, state, stays_whole, unreduced, vocabulary
from simulator.model import Model, Stack
from simulator.parameters import parameters
from simulator.trainers import habits

GIB = 2**30
OUTSIDE = 2.0 * GIB
"""CUDA's context, kernels and NCCL's buffers, which the allocator does not count."""
GROUP = 0.5 * GIB
"""Of NCCL for each further kind of group that a rank is in, beyond the first."""
FRAGMENTED = 1.03
"""What the allocator needs of the device over what tensors hold at their peak; it takes more while there is more."""
RESERVED = 1.17
"""What it takes where there is room, of what comes and goes within a step: measured 1.05 to 1.27 on one H200, the more
the larger the logits. What lasts (weights, moments, buffers of gradients) is laid down once."""


@dataclass(frozen=True, slots=True)
class Memory:
    parts: dict[str, float]
    """Bytes by what holds them, each at its largest."""
    total: float
    """Peak of the allocator: not all parts are there at once."""
    room: float
    """Bytes of a GPU; data sheets mean GiB where they say GB."""
    printed: float = 0.0
    """What the trainer would report of it: the peak, or what was taken of the device."""
    asked: tuple[Model, Layout, System] | None = field(default=None, repr=False, compare=False)

    @property
    def taken(self) -> float:
        """Of the device."""
        return sum(self.parts.values()) * FRAGMENTED + OUTSIDE

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
    parts, total = _stage(model, layout, first=True, last=layout.pp == 1)
    if layout.pp > 1:
        others = _stage(model, layout, first=False, last=True)
        if sum(others[0].values()) > sum(parts.values()):
            parts, total = others
    room = system.gpu.memory_gb * GIB
    return Memory(parts, total, room, _printed(parts, total, room, layout), (model, layout, system))


def nearest(model: Model, layout: Layout, system: System) -> str:
    """The smallest change that makes it fit, as words; empty where none does."""
    return next((words for words, changed in changes(model, layout) if memory(model, changed, system).fits), "")


def fits(needed: Memory, is_gpu: bool) -> bool:
    """What CUDA takes beside the allocator does not count where there is none."""
    return needed.fits if is_gpu else needed.total <= needed.room


def _fix(model: Model, layout: Layout, system: System) -> str:
    found = nearest(model, layout, system)
    return f"fits with {found}" if found else "nothing near it fits: choose a GPU with more memory, or more stages (pp)"


def _printed(parts: dict[str, float], total: float, room: float, layout: Layout) -> float:
    """What the allocator takes ends where the device does; what tensors need does not."""
    tells = layout.told or habits(layout.trainer).tells
    if tells == "peak":
        return total
    stays = _lasting(parts, layout)
    # Split gradients are reduced on a stream of their own, and come out of a pool of their own.
    comes = (sum(parts.values()) if layout.zero >= GRADIENTS else total) - stays
    return max(total, min(stays + comes * RESERVED + (_outside(layout) if tells == "device" else 0.0), room))


def _lasting(parts: dict[str, float], layout: Layout) -> float:
    """Laid down once, at the start; weights that are gathered for a whole step are not."""
    if stays_whole(layout):
        return parts["optimizer"]
    return parts["optimizer"] + parts["weights"] + (parts["gradients"] if buffered(layout) else 0.0)


def _outside(layout: Layout) -> float:
    kinds = sum(size > 1 for size in (layout.tp, layout.pp, layout.dp, layout.cp, layout.ep))
    return OUTSIDE + GROUP * max(0, kinds - 1)


def _stage(model: Model, layout: Layout, *, first: bool, last: bool) -> tuple[dict[str, float], float]:
    """Bytes by what holds them, and their peak."""
    held = stage(parameters(model), layout, first=first, last=last)
    parts = state(held, layout)
    if isinstance(model, Stack):
        parts |= {"working": unreduced(held, layout), "activations": stack_activations(model, layout)}
        return parts, sum(parts.values())
    kept, alive = activations(model, layout, held.mixtures, first=first)
    at_loss = logits(model, layout) if last else 0.0
    working = unreduced(held, layout)
    if layout.framework == "torch":
        parts |= _larger(held, layout, kept, alive, at_loss)
        return parts, _torch_peak(parts, layout, kept * layout.pp / model.layers + alive + working)
    parts |= {"working": working, "activations": kept + alive, "logits": at_loss}
    # Logits are gone when backward reaches the last layer.
    return parts, sum(parts.values()) - min(alive, at_loss)


def _larger(held: Held, layout: Layout, kept: float, alive: float, at_loss: float) -> dict[str, float]:
    """The larger of two moments: the loss, and backward in the layer before it."""
    working, ends = unreduced(held, layout), vocabulary(held, layout)
    if at_loss + ends > alive + working:
        return {"working": ends, "activations": kept, "logits": at_loss}
    return {"working": working, "activations": kept + alive, "logits": 0.0}


def _torch_peak(parts: dict[str, float], layout: Layout, layer: float) -> float:
    """Gradients come as activations go: all of them are there beside the first layer's alone."""
    whole = sum(parts.values())
    if buffered(layout) or layout.micro_batches > 1:
        return whole
    behind = parts["weights"] + parts["optimizer"] + parts["gradients"] + layer
    return max(whole - parts["gradients"], behind)
