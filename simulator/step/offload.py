"""Seconds of a step that go to a host which holds what GPUs have no room for."""

from __future__ import annotations

from simulator.hardware.system import System
from simulator.layout import Layout
from simulator.memory.state import StageParameters, list_offloaded, sharded_parameters, stage_parameters
from simulator.model import Model
from simulator.parameters import count_parameters

UPDATE_BYTES = 28
"""Reads and writes of Adam for one parameter in fp32."""
HOST_MEMORY_GB_S = 100.0
"""Of one node's memory, as an update on its processors reaches it: two sockets of eight channels reach about twice that
with every core; unverified."""


def offload_s(model: Model, layout: Layout, system: System) -> float:
    """Weights to the GPU for every pass, gradients back, and the update by the host; nothing of it is hidden."""
    if not layout.offload:
        return 0.0
    held = stage_parameters(count_parameters(model), layout, first=True, last=layout.pp == 1)
    return _moved_s(held, layout, system) + _update_s(held, layout, system)


def _moved_s(held: StageParameters, layout: Layout, system: System) -> float:
    mine = sharded_parameters(held, layout)
    if "weights" in list_offloaded(layout):
        passes = 2 * max(1, layout.micro_batches)
        size = layout.weight_bytes * passes + layout.gradient_bytes
    else:
        size = 2 + layout.gradient_bytes
    return mine * size / (system.host_gb_s * 1e9)


def _update_s(held: StageParameters, layout: Layout, system: System) -> float:
    """All GPUs of a node share its memory."""
    ranks = min(layout.gpus, system.gpus_per_node)
    return sharded_parameters(held, layout) * ranks * UPDATE_BYTES / (HOST_MEMORY_GB_S * 1e9)
