"""Predict the seconds that offloading state to host memory adds to a step."""

from __future__ import annotations

from simulator.hardware.system import System
from simulator.layout import Layout
from simulator.memory.state import StageParameters, list_offloaded, sharded_parameters, stage_parameters
from simulator.model import Model
from simulator.parameters import count_parameters

UPDATE_BYTES = 28
"""Bytes that Adam reads and writes per parameter in fp32."""
HOST_MEMORY_GB_S = 100.0
"""Memory bandwidth that an update on the CPUs of a node reaches.

Unverified: two sockets with eight channels each reach about twice as much with all cores.
"""


def offload_s(model: Model, layout: Layout, system: System) -> float:
    """Return the seconds to move weights and gradients and to update on the host; nothing overlaps."""
    if not layout.offload:
        return 0.0
    held = stage_parameters(count_parameters(model), layout, first=True, last=layout.pp == 1)
    return _moved_s(held, layout, system) + _update_s(held, layout, system)


def _moved_s(held: StageParameters, layout: Layout, system: System) -> float:
    parameters = sharded_parameters(held, layout)
    # Sharded gradients are moved in the format in which they are stored.
    gradient = layout.gradient_bytes if layout.stored_gradient_bytes is None else layout.stored_gradient_bytes
    if "weights" in list_offloaded(layout):
        passes = 2 * max(1, layout.micro_batches)
        size = layout.weight_bytes * passes + gradient
    else:
        size = 2 + gradient
    return parameters * size / (system.host_gb_s * 1e9)


def _update_s(held: StageParameters, layout: Layout, system: System) -> float:
    """Return the seconds of the update; all GPUs of a node share its memory bandwidth."""
    ranks = min(layout.gpus, system.gpus_per_node)
    return sharded_parameters(held, layout) * ranks * UPDATE_BYTES / (HOST_MEMORY_GB_S * 1e9)
