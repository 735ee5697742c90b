"""What one GPU of the fullest pipeline stage has to hold at its peak, and what to change where it does not fit."""

from __future__ import annotations

from dataclasses import dataclass, field

from simulator.hardware.system import System
from simulator.layout import Layout
from simulator.memory.activations import activation_bytes, logit_bytes, sequential_activation_bytes
from simulator.memory.nearest import list_layout_changes
from simulator.memory.state import (
    GRADIENTS,
    StageParameters,
    gathered_vocabulary_bytes,
    has_gradient_buffers,
    keeps_weights_gathered,
    stage_parameters,
    state_bytes,
    working_bytes,
)
from simulator.model import Model, SequentialModel
from simulator.parameters import count_parameters
from simulator.trainers import trainer_behavior

GIB = 2**30
CUDA_CONTEXT_BYTES = 2.0 * GIB
"""CUDA's context, kernels and NCCL's buffers, which the allocator does not count."""
GROUP = 0.5 * GIB
"""Of NCCL for each further kind of group that a rank is in, beyond the first."""
FRAGMENTATION_FACTOR = 1.03
"""What the allocator needs of the device over what tensors hold at their peak; it takes more while there is more."""
RESERVED_FACTOR = 1.17
"""What it takes where there is room, of what comes and goes within a step: measured 1.05 to 1.27 on one H200, the more
the larger the logits. What lasts (weights, moments, buffers of gradients) is laid down once."""


@dataclass(frozen=True, slots=True)
class MemoryPeak:
    parts: dict[str, float]
    """Bytes by what holds them, each at its largest."""
    total: float
    """Peak of the allocator: not all parts are there at once."""
    capacity: float
    """Bytes of a GPU; data sheets mean GiB where they say GB."""
    reported: float = 0.0
    """What the trainer would report of it: the peak, or what was taken of the device."""
    asked: tuple[Model, Layout, System] | None = field(default=None, repr=False, compare=False)

    @property
    def on_device(self) -> float:
        """Of the device."""
        return sum(self.parts.values()) * FRAGMENTATION_FACTOR + CUDA_CONTEXT_BYTES

    @property
    def fits(self) -> bool:
        return self.on_device <= self.capacity

    @property
    def reason(self) -> str:
        """Why it does not fit, and the nearest change with which it does; empty where it fits."""
        if self.fits:
            return ""
        largest = max(self.parts, key=self.parts.__getitem__)
        said = (
            f"memory: {self.on_device / GIB:.1f} GiB; allowed: {self.capacity / GIB:.0f} GiB; "
            f"largest: {largest} {self.parts[largest] / GIB:.1f} GiB"
        )
        return f"{said}; {_fix(*self.asked)}" if self.asked else said


def predict_memory(model: Model, layout: Layout, system: System) -> MemoryPeak:
    """The first stage keeps the most micro-batches, the last has the logits."""
    parts, total = _stage(model, layout, first=True, last=layout.pp == 1)
    if layout.pp > 1:
        others = _stage(model, layout, first=False, last=True)
        if sum(others[0].values()) > sum(parts.values()):
            parts, total = others
    room = system.gpu.memory_gb * GIB
    return MemoryPeak(parts, total, room, _printed(parts, total, room, layout), (model, layout, system))


def suggest_change(model: Model, layout: Layout, system: System) -> str:
    """The smallest change that makes it fit, as words; empty where none does."""
    return next(
        (words for words, changed in list_layout_changes(model, layout) if predict_memory(model, changed, system).fits),
        "",
    )


def fits_in_memory(needed: MemoryPeak, is_gpu: bool) -> bool:
    """What CUDA takes beside the allocator does not count where there is none."""
    return needed.fits if is_gpu else needed.total <= needed.capacity


def _fix(model: Model, layout: Layout, system: System) -> str:
    found = suggest_change(model, layout, system)
    return f"fits with {found}" if found else "nothing near it fits: choose a GPU with more memory, or more stages (pp)"


def _printed(parts: dict[str, float], total: float, room: float, layout: Layout) -> float:
    """What the allocator takes ends where the device does; what tensors need does not."""
    tells = layout.told or trainer_behavior(layout.trainer).tells
    if tells == "peak":
        return total
    stays = _lasting(parts, layout)
    # Split gradients are reduced on a stream of their own, and come out of a pool of their own.
    comes = (sum(parts.values()) if layout.zero >= GRADIENTS else total) - stays
    return max(total, min(stays + comes * RESERVED_FACTOR + (_outside(layout) if tells == "device" else 0.0), room))


def _lasting(parts: dict[str, float], layout: Layout) -> float:
    """Laid down once, at the start; weights that are gathered for a whole step are not."""
    if keeps_weights_gathered(layout):
        return parts["optimizer"]
    return parts["optimizer"] + parts["weights"] + (parts["gradients"] if has_gradient_buffers(layout) else 0.0)


def _outside(layout: Layout) -> float:
    kinds = sum(size > 1 for size in (layout.tp, layout.pp, layout.dp, layout.cp, layout.ep))
    return CUDA_CONTEXT_BYTES + GROUP * max(0, kinds - 1)


def _stage(model: Model, layout: Layout, *, first: bool, last: bool) -> tuple[dict[str, float], float]:
    """Bytes by what holds them, and their peak."""
    held = stage_parameters(count_parameters(model), layout, first=first, last=last)
    parts = state_bytes(held, layout)
    if isinstance(model, SequentialModel):
        parts |= {"working": working_bytes(held, layout), "activations": sequential_activation_bytes(model, layout)}
        return parts, sum(parts.values())
    kept, alive = activation_bytes(model, layout, held.mixtures, first=first)
    at_loss = logit_bytes(model, layout) if last else 0.0
    working = working_bytes(held, layout)
    if layout.framework == "torch":
        parts |= _larger(held, layout, kept, alive, at_loss)
        return parts, _torch_peak(parts, layout, kept * layout.pp / model.layers + alive + working)
    parts |= {"working": working, "activations": kept + alive, "logits": at_loss}
    # Logits are gone when backward reaches the last layer.
    return parts, sum(parts.values()) - min(alive, at_loss)


def _larger(held: StageParameters, layout: Layout, kept: float, alive: float, at_loss: float) -> dict[str, float]:
    """The larger of two moments: the loss, and backward in the layer before it."""
    working, ends = working_bytes(held, layout), gathered_vocabulary_bytes(held, layout)
    if at_loss + ends > alive + working:
        return {"working": ends, "activations": kept, "logits": at_loss}
    return {"working": working, "activations": kept + alive, "logits": 0.0}


def _torch_peak(parts: dict[str, float], layout: Layout, layer: float) -> float:
    """Gradients come as activations go: all of them are there beside the first layer's alone."""
    whole = sum(parts.values())
    if has_gradient_buffers(layout) or layout.micro_batches > 1:
        return whole
    behind = parts["weights"] + parts["optimizer"] + parts["gradients"] + layer
    return max(whole - parts["gradients"], behind)
