"""SwiGLU between fp8 products: its output and its gradients are written in fp8 at once, with their transposes.

A cast after the activation would read bf16 values that the activation has just written: 4 of 10 bytes for each value in
the forward pass and 8 of 18 in the backward pass. Both are operations of their own, so that a compiled graph calls the
kernels as they are.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from trainer.models.fp8_cast import cast_plainly
from trainer.models.fp8_formats import E4M3, E5M2, Cast


@torch.library.custom_op("muster::activate_fp8", mutates_args=())
def activate_fp8(gate: torch.Tensor, up: torch.Tensor, scale: torch.Tensor) -> Cast:
    """Return silu(gate) * up of two bf16 matrices as `cast_fp8` returns it, in e4m3."""
    if not gate.is_cuda:
        return cast_plainly(F.silu(gate.float()) * up.float(), scale, E4M3)
    # Triton is imported where it is used: it takes long, and the package exists on Linux only.
    from trainer.models.fp8_swiglu_kernel import activate_tiles  # noqa: PLC0415

    return activate_tiles(gate.contiguous(), up.contiguous(), scale)


@activate_fp8.register_fake
def _describe(gate: torch.Tensor, up: torch.Tensor, scale: torch.Tensor) -> Cast:  # noqa: ARG001 - of the operation
    rows, columns = gate.shape
    return gate.new_empty(rows, columns, dtype=E4M3), gate.new_empty(columns, rows, dtype=E4M3), scale.new_empty(2)


@torch.library.custom_op("muster::differentiate_activation_fp8", mutates_args=())
def differentiate_activation_fp8(
    gradient: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, gate_scale: torch.Tensor, up_scale: torch.Tensor
) -> Cast:
    """Return the gradients of gate and up from that of the activation, each as `cast_fp8` returns it, in e5m2.

    The first dimension of each result is 2: gate and up.
    """
    if not gate.is_cuda:
        casts = [
            cast_plainly(values, scale, E5M2)
            for values, scale in zip(differentiate(gradient, gate, up), (gate_scale, up_scale), strict=True)
        ]
        values, transposed, figures = (torch.stack(parts) for parts in zip(*casts, strict=True))
        return values, transposed, figures
    from trainer.models.fp8_swiglu_kernel import differentiate_tiles  # noqa: PLC0415 - as above

    return differentiate_tiles(gradient.contiguous(), gate.contiguous(), up.contiguous(), gate_scale, up_scale)


@differentiate_activation_fp8.register_fake
def _describe_gradients(
    gradient: torch.Tensor,
    gate: torch.Tensor,  # noqa: ARG001 - the parameters of the operation
    up: torch.Tensor,  # noqa: ARG001
    gate_scale: torch.Tensor,
    up_scale: torch.Tensor,  # noqa: ARG001
) -> Cast:
    rows, columns = gradient.shape
    return (
        gradient.new_empty(2, rows, columns, dtype=E5M2),
        gradient.new_empty(2, columns, rows, dtype=E5M2),
        gate_scale.new_empty(2, 2),
    )


def differentiate(gradient: torch.Tensor, gate: torch.Tensor, up: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the gradients of gate and up in fp32."""
    gradient, gate, up = gradient.float(), gate.float(), up.float()
    share = gate.sigmoid()
    return gradient * up * (share * (1 + gate * (1 - share))), gradient * (gate * share)
