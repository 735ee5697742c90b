"""A Triton kernel for the update of AdamW, which moves fewer bytes than torch's. Only GPUs can run it.

torch's fused kernel writes gradients back after it has divided them, although nobody reads them again, and takes fp32
tensors only: bf16 weights, gradients and moments would have to be copied before and rounded after it.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from trainer.config.schema import OptimizerConfig
from trainer.optimizers.chunks import Update
from trainer.optimizers.slot import Slot
from trainer.parallel.gradients import to_local

_BLOCK_VALUES = 2048
_WARPS = 8
_LARGEST_SEED = 2**31
_INFINITY_BITS = tl.constexpr(0x7F800000)
_NAN_BITS = tl.constexpr(0x7FC00000)


def update_slot(
    slot: Slot, *, corrections: torch.Tensor, decay: float, update: Update, config: OptimizerConfig
) -> None:
    """Update a parameter, stored in fp32 or bf16, and its moments in one pass; `corrections` are those of their bias.

    bf16 weights that have an fp32 copy are that copy, rounded to the nearest; all other bf16 values are rounded
    stochastically.
    """
    stored, first, second = (
        to_local(each) for each in (slot.parameter, slot.moments["first"].values, slot.moments["second"].values)
    )
    updated = stored if slot.master is None else to_local(slot.master)
    _update_values[triton.cdiv(updated.numel(), _BLOCK_VALUES),](
        updated,
        stored,
        to_local(slot.gradient),
        first,
        second,
        corrections,
        corrections if update.divide is None else update.divide,
        corrections if update.skip is None else update.skip,
        updated.numel(),
        slot.make_seed("update", 0, update.seed) % _LARGEST_SEED,
        update.rate,
        update.rate * decay,
        config.beta1,
        config.beta2,
        config.eps,
        has_copy=slot.master is not None,
        divides=update.divide is not None,
        can_skip=update.skip is not None,
        block_values=_BLOCK_VALUES,
        num_warps=_WARPS,
    )


# The seed differs in every step: kernels for special numbers, such as multiples of 16, would be compiled during a run.
@triton.jit(do_not_specialize=["seed"])
def _update_values(  # type: ignore[no-untyped-def]  # noqa: PLR0913, PLR0917
    values,
    copies,
    gradients,
    firsts,
    seconds,
    corrections,
    divide,
    skip,
    count,
    seed,
    rate,
    shrink,
    beta1,
    beta2,
    eps,
    has_copy: tl.constexpr,
    divides: tl.constexpr,
    can_skip: tl.constexpr,
    block_values: tl.constexpr,
):
    at = tl.program_id(0).to(tl.int64) * block_values + tl.arange(0, block_values)
    if can_skip:
        # Values outside are neither read nor written.
        count = tl.where(tl.load(skip) == 0.0, count, 0)
    inside = at < count
    gradient = tl.load(gradients + at, mask=inside).to(tl.float32)
    if divides:
        gradient = gradient / tl.load(divide)
    value = tl.load(values + at, mask=inside).to(tl.float32)
    first = tl.load(firsts + at, mask=inside).to(tl.float32)
    second = tl.load(seconds + at, mask=inside).to(tl.float32)
    first = first + (gradient - first) * (1 - beta1)
    second = second * beta2 + gradient * gradient * (1 - beta2)
    root = tl.sqrt(second) / tl.load(corrections + 1) + eps
    value = value - shrink * value
    value = value - rate / tl.load(corrections) * first / root
    noise = _mix_bits(_mix_bits(at.to(tl.uint32) + seed.to(tl.uint32)) ^ seed.to(tl.uint32))
    _store(values, at, value, noise & 0xFFFF, inside)
    if has_copy:
        # To the nearest value, and halfway between two to the even one.
        _store(copies, at, value, 0x7FFF + (value.to(tl.uint32, bitcast=True) >> 16 & 1), inside)
    noise = _mix_bits(noise)
    _store(firsts, at, first, noise & 0xFFFF, inside)
    _store(seconds, at, second, noise >> 16, inside)


@triton.jit
def _store(pointer, at, value, noise, inside):  # type: ignore[no-untyped-def]  # Triton's arguments have no types
    """Store fp32 values; in bf16 rounded up or down, so that their mean is preserved if noise has 16 random bits."""
    if pointer.dtype.element_ty == tl.bfloat16:
        bits = value.to(tl.uint32, bitcast=True)
        # The bits of a NaN may overflow to those of zero.
        is_nan = bits & 0x7FFFFFFF > _INFINITY_BITS
        bits = tl.where(is_nan, _NAN_BITS, bits + noise & 0xFFFF0000)
        value = bits.to(tl.float32, bitcast=True).to(tl.bfloat16)
    tl.store(pointer + at, value, mask=inside)


@triton.jit
def _mix_bits(bits):  # type: ignore[no-untyped-def]  # Triton's arguments have no types
    """Hash 32 bits by the last steps of MurmurHash3; a random generator would take longer than the bytes that move."""
    bits ^= bits >> 16
    bits *= 0x85EBCA6B
    bits ^= bits >> 13
    bits *= 0xC2B2AE35
    bits ^= bits >> 16
    return bits
