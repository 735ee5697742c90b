"""The GPU's kernels of loss and optimizer in Triton's interpreter: the same results as torch's operations.

tests/gpu compiles them and runs them at the sizes of real models.
"""

from __future__ import annotations

from unittest.mock import patch

import pytest
import torch
import torch.nn.functional as F

from trainer.config.schema import OptimizerConfig
from trainer.models import softmax_kernel
from trainer.models.functional import IGNORED_TARGET
from trainer.optimizers import adamw_kernel
from trainer.optimizers.chunks import Update


@pytest.mark.parametrize("columns", [1, 5, 70])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_logits_become_their_gradient(columns: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(1)
    logits = (3 * torch.randn(5, columns, generator=generator)).to(dtype)
    targets = torch.randint(columns, (5,), generator=generator)
    targets[2] = IGNORED_TARGET
    exact = logits.double().requires_grad_()
    expected = F.cross_entropy(exact, targets, reduction="none", ignore_index=IGNORED_TARGET)
    (slopes,) = torch.autograd.grad(expected.sum(), exact)
    losses = torch.empty(5)
    # Blocks that are smaller than a row, and the last one not full.
    with patch.object(softmax_kernel, "_BLOCK_COLUMNS", 32):
        softmax_kernel.differentiate_rows(logits, targets, losses, 2.0)
    assert torch.allclose(losses.double(), expected, rtol=1e-5, atol=1e-6)
    assert torch.allclose(logits.double() / 2, slopes, rtol=4 * torch.finfo(dtype).eps, atol=1e-6)


@pytest.mark.parametrize("divides", [True, False])
@pytest.mark.parametrize("skips", [True, False])
def test_adamw_updates_or_skips(divides: bool, skips: bool) -> None:
    config = OptimizerConfig(name="adamw")
    generator = torch.Generator().manual_seed(1)
    tensors = [torch.randn(3000, generator=generator) for _ in range(4)]
    tensors[3].abs_()
    ours, theirs = ([tensor.clone() for tensor in tensors] for _ in range(2))
    divide, skip = torch.tensor(4.0) if divides else None, torch.tensor(1.0) if skips else None
    count = torch.tensor(3.0)
    corrections = torch.stack((1 - config.beta1**count, (1 - config.beta2**count).sqrt()))
    adamw_kernel.update_tensor(
        ours[0],
        ours[1],
        (ours[2], ours[3]),
        corrections=corrections,
        decay=0.1,
        update=Update(1e-3, divide, skip, count, 0),
        config=config,
    )
    torch._fused_adamw_(
        *([tensor] for tensor in theirs), [], [count], lr=1e-3, beta1=config.beta1, beta2=config.beta2, eps=config.eps,
        weight_decay=0.1, amsgrad=False, maximize=False, grad_scale=divide, found_inf=skip,
    )  # fmt: skip
    for place in (0, 2, 3):
        assert torch.allclose(ours[place], theirs[place], rtol=1e-5, atol=1e-6)
