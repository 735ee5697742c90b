"""Cast an operand of an fp8 product in one pass: its values, their transpose and the largest absolute value.

It is an operation of its own, so that a compiled graph calls the kernel as it is. Dynamic scaling needs the largest
value before the first one can be cast, so it reads an operand twice, and once more to transpose it.
"""

from __future__ import annotations

import torch

from trainer.models.fp8_formats import SMALLEST_SCALE, Cast


@torch.library.custom_op("muster::cast_fp8", mutates_args=())
def cast_fp8(x: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype) -> Cast:
    """Return the values of a matrix in fp8; wider values are rounded to bf16 first, so that both have the same bits.

    Values beyond the range of the format become its largest one. A scale of 0 means that there is none yet: then it is
    derived from the values themselves. NaNs and infinities are visible in the largest value only.
    """
    if not x.is_cuda:
        return cast_plainly(x, scale, dtype)
    # Triton is imported where it is used: it takes long, and the package exists on Linux only.
    from trainer.models.fp8_cast_kernel import cast_tiles  # noqa: PLC0415

    return cast_tiles(x.contiguous(), scale, dtype)


@cast_fp8.register_fake
def _describe(x: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype) -> Cast:
    rows, columns = x.shape
    return x.new_empty(rows, columns, dtype=dtype), x.new_empty(columns, rows, dtype=dtype), scale.new_empty(2)


def cast_plainly(x: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype) -> Cast:
    """Return what `cast_fp8` returns, by torch's operations."""
    limit = torch.finfo(dtype).max
    x = x.to(torch.bfloat16)
    largest = x.float().abs().amax()
    # Divided by a tensor: on a GPU, torch multiplies by the reciprocal of a number, which may differ in the last bit.
    scale = torch.where(scale == 0, largest / torch.full_like(largest, limit), scale)
    values = (x.float() * (1 / scale.clamp(min=SMALLEST_SCALE))).clamp(-limit, limit).to(dtype)
    # A matrix of one row is its own transpose, but an operation must not return a tensor twice.
    return values, values.t().clone(memory_format=torch.contiguous_format), torch.stack((scale, largest))
