"""Predict the peak memory of one GPU of the fullest pipeline stage, and suggest a change if it exceeds the capacity."""

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
"""CUDA context, kernels and NCCL buffers, which the allocator does not count."""
NCCL_GROUP_BYTES = 0.5 * GIB
"""NCCL buffers of each kind of group that a rank is in, beyond the first."""
FRAGMENTATION_FACTOR = 1.03
"""Memory that the allocator needs, relative to the peak of tensors; it takes more while there is free memory."""
RESERVED_FACTOR = 1.17
"""Memory that the allocator reserves if there is enough, relative to tensors that come and go within a step.

Measured 1.05 to 1.27 on one H200, growing with the logits. Permanent tensors (weights, moments, gradient buffers) are
allocated once.
"""


@dataclass(frozen=True, slots=True)
class MemoryPeak:
    """Predicted memory of the fullest GPU."""

    parts: dict[str, float]
    """Bytes by what holds them, each at its largest."""
    total: float
    """Peak of the allocator in bytes; less than the sum of the parts if they are not alive at the same time."""
    capacity: float
    """Memory of a GPU in bytes; data sheets mean GiB where they write GB."""
    reported: float = 0.0
    """Bytes that the trainer would report: the peak, or what was reserved or used on the device."""
    inputs: tuple[Model, Layout, System] | None = field(default=None, repr=False, compare=False)
    """What was predicted, to suggest a change."""

    @property
    def on_device(self) -> float:
        """Bytes used on the device, with fragmentation and the CUDA context."""
        return sum(self.parts.values()) * FRAGMENTATION_FACTOR + CUDA_CONTEXT_BYTES

    @property
    def fits(self) -> bool:
        return self.on_device <= self.capacity

    @property
    def reason(self) -> str:
        """Why it exceeds the capacity, and the smallest change that helps; empty if it fits."""
        if self.fits:
            return ""
        largest = max(self.parts, key=self.parts.__getitem__)
        problem = (
            f"memory: {self.on_device / GIB:.1f} GiB; allowed: {self.capacity / GIB:.0f} GiB; "
            f"largest: {largest} {self.parts[largest] / GIB:.1f} GiB"
        )
        return f"{problem}; {_fix(*self.inputs)}" if self.inputs else problem


def predict_memory(model: Model, layout: Layout, system: System) -> MemoryPeak:
    """Predict the memory of the fullest stage: the first saves the most micro-batches, the last has the logits."""
    parts, total = _stage_peak(model, layout, first=True, last=layout.pp == 1)
    if layout.pp > 1:
        last_parts, last_total = _stage_peak(model, layout, first=False, last=True)
        if last_total > total:
            parts, total = last_parts, last_total
    capacity = system.gpu.memory_gb * GIB
    return MemoryPeak(parts, total, capacity, _reported(parts, total, capacity, layout), (model, layout, system))


def suggest_change(model: Model, layout: Layout, system: System) -> str:
    """Describe the smallest change with which the layout fits in memory; empty if there is none."""
    changes = list_layout_changes(model, layout)
    return next((text for text, changed in changes if predict_memory(model, changed, system).fits), "")


def fits_in_memory(peak: MemoryPeak, is_gpu: bool) -> bool:
    """Return whether the peak fits; without a GPU there is no CUDA context to count."""
    return peak.fits if is_gpu else peak.total <= peak.capacity


def _fix(model: Model, layout: Layout, system: System) -> str:
    change = suggest_change(model, layout, system)
    return f"fits with {change}" if change else "no similar layout fits: choose a GPU with more memory, or a larger pp"


def _reported(parts: dict[str, float], total: float, capacity: float, layout: Layout) -> float:
    """Return the figure that the trainer reports; what the allocator reserves is limited by the device."""
    figure = layout.memory_figure or trainer_behavior(layout.trainer).memory_figure
    if figure == "peak":
        return total
    permanent = _permanent_bytes(parts, layout)
    # Sharded gradients are reduced on a separate stream, whose allocations come from a separate pool.
    temporary = (sum(parts.values()) if layout.zero >= GRADIENTS else total) - permanent
    outside = _outside_allocator(layout) if figure == "device" else 0.0
    return max(total, min(permanent + temporary * RESERVED_FACTOR + outside, capacity))


def _permanent_bytes(parts: dict[str, float], layout: Layout) -> float:
    """Return the bytes allocated once at the start; weights gathered for each step are not."""
    if keeps_weights_gathered(layout):
        return parts["optimizer"]
    return parts["optimizer"] + parts["weights"] + (parts["gradients"] if has_gradient_buffers(layout) else 0.0)


def _outside_allocator(layout: Layout) -> float:
    kinds = sum(size > 1 for size in (layout.tp, layout.pp, layout.dp, layout.cp, layout.ep))
    return CUDA_CONTEXT_BYTES + NCCL_GROUP_BYTES * max(0, kinds - 1)


def _stage_peak(model: Model, layout: Layout, *, first: bool, last: bool) -> tuple[dict[str, float], float]:
    """Return the bytes of one stage by what holds them, and their peak."""
    held = stage_parameters(count_parameters(model), layout, first=first, last=last)
    parts = state_bytes(held, layout)
    if isinstance(model, SequentialModel):
        parts |= {"working": working_bytes(held, layout), "activations": sequential_activation_bytes(model, layout)}
        return parts, sum(parts.values())
    saved, in_backward = activation_bytes(model, layout, held.mixtures, first=first)
    at_loss = logit_bytes(model, layout) if last else 0.0
    working = working_bytes(held, layout)
    if layout.framework == "torch":
        parts |= _larger_moment(held, layout, saved, in_backward, at_loss)
        return parts, _torch_peak(parts, layout, saved * layout.pp / model.layers + in_backward + working)
    parts |= {"working": working, "activations": saved + in_backward, "logits": at_loss}
    # Logits are freed before backward reaches the last layer.
    return parts, sum(parts.values()) - min(in_backward, at_loss)


def _larger_moment(
    held: StageParameters, layout: Layout, saved: float, in_backward: float, at_loss: float
) -> dict[str, float]:
    """Return the larger of two moments: the loss, and backward of the last layer."""
    working, vocabulary = working_bytes(held, layout), gathered_vocabulary_bytes(held, layout)
    if at_loss + vocabulary > in_backward + working:
        return {"working": vocabulary, "activations": saved, "logits": at_loss}
    return {"working": working, "activations": saved + in_backward, "logits": 0.0}


def _torch_peak(parts: dict[str, float], layout: Layout, layer: float) -> float:
    """Return the peak of unfused modules, whose gradients are allocated as activations are freed.

    All gradients exist only together with the activations of the first layer (`layer`).
    """
    everything = sum(parts.values())
    if has_gradient_buffers(layout) or layout.micro_batches > 1:
        return everything
    end_of_backward = parts["weights"] + parts["optimizer"] + parts["gradients"] + layer
    return max(everything - parts["gradients"], end_of_backward)
