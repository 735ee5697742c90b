"""The stored form of a moment: a tensor shaped like its parameter in fp32, bf16 or int8, for int8 with scales.

bf16 and int8 are rounded stochastically: a slow average such as AdamW's second moment changes by less than their
resolution in a step, and rounding to the nearest value would stop it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from trainer.config.schema import MomentFormat
from trainer.optimizers.eight_bit import dequantize, quantize
from trainer.parallel.gradients import to_local
from trainer.state_formats import choose_block_size, choose_moment_format

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "int8": torch.uint8}
_BF16_DROPPED_BITS = 16


@dataclass(frozen=True)
class Moment:
    """One moment of a parameter, as it is stored; sharded like the parameter."""

    format: MomentFormat
    is_signed: bool
    values: torch.Tensor
    """The values themselves or, in int8, their codes."""
    scales: torch.Tensor | None = None
    """int8: the scale of each block, by row."""

    @property
    def block_size(self) -> int:
        """Values that share a scale, or 0 without scales."""
        return 0 if self.scales is None else choose_block_size(self.values.shape)

    def tensors(self, name: str) -> dict[str, torch.Tensor]:
        """Return the tensors of a checkpoint by name."""
        return {name: self.values} if self.scales is None else {name: self.values, f"{name}_scale": self.scales}


def make_moment(parameter: torch.Tensor, requested: MomentFormat, *, is_signed: bool) -> Moment:
    """Return a moment of zeros for a parameter."""
    chosen = choose_moment_format(requested, parameter.shape)
    if chosen == "fp32":
        return Moment(chosen, is_signed, torch.zeros_like(parameter, dtype=torch.float32, requires_grad=False))
    values = _make_zeros(parameter, tuple(parameter.shape), DTYPES[chosen])
    if chosen == "bf16":
        return Moment(chosen, is_signed, values)
    blocks = math.prod(parameter.shape[1:]) // choose_block_size(parameter.shape)
    return Moment(chosen, is_signed, values, _make_zeros(parameter, (parameter.shape[0], blocks), torch.float32))


@torch.no_grad()
def make_master(parameter: torch.Tensor) -> torch.Tensor:
    """Return an fp32 copy of a parameter, sharded like it."""
    master = torch.zeros_like(parameter, dtype=torch.float32, requires_grad=False)
    to_local(master).copy_(to_local(parameter))
    return master


def unpack(moments: list[Moment], rows: list[slice]) -> torch.Tensor:
    """Return the given rows of moments of one bf16 or int8 format, end to end, as a flat fp32 tensor."""
    parts = [select_rows(moment.values, part) for moment, part in zip(moments, rows, strict=True)]
    if moments[0].format == "bf16":
        return torch.cat([part.flatten() for part in parts]).float()
    block = moments[0].block_size
    codes = torch.cat([part.reshape(-1, block) for part in parts])
    scales = torch.cat([part.flatten() for part in _select_scales(moments, rows)])
    return dequantize(codes, scales, is_signed=moments[0].is_signed).flatten()


def pack(
    flat: torch.Tensor, moments: list[Moment], rows: list[slice], noise: torch.Tensor, skip: torch.Tensor | None
) -> None:
    """Store what `unpack` returned, after it changed, or nothing if `skip` is 1; `noise` is uniform between 0 and 1."""
    parts = [select_rows(moment.values, part) for moment, part in zip(moments, rows, strict=True)]
    if moments[0].format == "bf16":
        # Values that did not change have no bits to round, so a skipped update needs no care.
        _scatter(round_to_bf16(flat, noise), parts)
        return
    block = moments[0].block_size
    codes, scales = quantize(flat.view(-1, block), noise.view(-1, block), is_signed=moments[0].is_signed)
    stored_scales = _select_scales(moments, rows)
    if skip is not None:
        codes = torch.where(skip > 0, torch.cat([part.reshape(-1, block) for part in parts]), codes)
        scales = torch.where(skip > 0, torch.cat([part.flatten() for part in stored_scales]), scales)
    _scatter(codes.flatten(), parts)
    _scatter(scales, stored_scales)


def round_to_bf16(values: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
    """Round fp32 values up or down to bf16, with probabilities that preserve their mean."""
    bits = values.view(torch.int32) + (noise * 2**_BF16_DROPPED_BITS).to(torch.int32)
    rounded = (bits & -(2**_BF16_DROPPED_BITS)).view(torch.float32)
    # The bits of a NaN may overflow to those of zero.
    return torch.where(values.isnan(), values, rounded).bfloat16()


def select_rows(tensor: torch.Tensor, rows: slice) -> torch.Tensor:
    """Return a view of some rows of this rank's part; a scalar is a row."""
    local = to_local(tensor)
    return local[rows] if local.ndim else local.view(1)[rows]


def _select_scales(moments: list[Moment], rows: list[slice]) -> list[torch.Tensor]:
    pairs = zip(moments, rows, strict=True)
    return [select_rows(moment.scales, part) for moment, part in pairs if moment.scales is not None]


def _scatter(flat: torch.Tensor, parts: list[torch.Tensor]) -> None:
    pieces = flat.split([part.numel() for part in parts])
    torch._foreach_copy_(parts, [piece.view_as(part) for piece, part in zip(pieces, parts, strict=True)])


def _make_zeros(parameter: Any, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Return zeros on the parameter's device, with the parameter's rows on each rank."""
    local = to_local(parameter)
    rows = local.shape[:1]
    # Only rows may be sharded if the shape is another one.
    local_shape = local.shape if shape == tuple(parameter.shape) else (*rows, *shape[1:])
    zeros = torch.zeros(local_shape, dtype=dtype, device=local.device)
    if not hasattr(parameter, "to_local"):
        return zeros
    # Start-up: only sharded models need it.
    from torch.distributed.tensor import DTensor  # noqa: PLC0415

    stride = torch.empty(shape, device="meta").stride()
    return DTensor.from_local(
        zeros, parameter.device_mesh, parameter.placements, run_check=False, shape=torch.Size(shape), stride=stride
    )
