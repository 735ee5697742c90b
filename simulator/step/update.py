"""Count the bytes that an optimizer's update reads and writes."""

from __future__ import annotations

from simulator.layout import OWN_TRAINERS, Layout

UPDATE_BYTES, UPDATE_BYTES_NARROW = 30, 14
"""Bytes per parameter of Adam: fp32 state and a low-precision copy; or all in low precision."""
FP32_BYTES = 4
FP32_WEIGHT_TRAFFIC = 10
"""Bytes per parameter of `UPDATE_BYTES` that are the weight's: read, written, and copied to low precision."""
MASTER_TRAFFIC = 14
"""The same for a bf16 weight with an fp32 copy: the copy is read and written, then read and rounded."""
ROUNDED_TRAFFIC = 64
"""The same for a bf16 weight that is rounded stochastically.

It is copied to fp32, updated, and rounded by separate kernels for the noise and for its sum with the bits. Counted from
trainer/optimizers/slot.py, not measured.
"""
COPIED_GRADIENT_TRAFFIC = 6
"""Bytes per parameter to copy a bf16 gradient to fp32 before the update reads it."""


def update_bytes(layout: Layout) -> float:
    """Return the bytes that are read and written per parameter.

    This project's trainer updates in fp32, whatever the formats are, and copies what is stored in others.
    """
    if layout.trainer not in OWN_TRAINERS or layout.framework != "torch" or layout.stored_gradient_bytes is None:
        return UPDATE_BYTES if layout.weight_bytes == FP32_BYTES else UPDATE_BYTES_NARROW
    size = UPDATE_BYTES
    if layout.weight_bytes < FP32_BYTES:
        size += (MASTER_TRAFFIC if layout.master_bytes else ROUNDED_TRAFFIC) - FP32_WEIGHT_TRAFFIC
    return size + (COPIED_GRADIENT_TRAFFIC if layout.summed_gradient_bytes < FP32_BYTES else 0)
