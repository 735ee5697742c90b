"""Head and loss in one operation on a GPU: its kernel and its gradients against those of autograd."""

from __future__ import annotations

import pytest
import torch

from tests.gpu.short_run import DEVICE
from trainer.models.functional import IGNORED_TARGET, compute_loss
from trainer.models.fused_loss import differentiate_head
from trainer.models.head import Head
from trainer.models.softmax_kernel import differentiate_rows
from trainer.objective import CrossEntropy


@pytest.mark.parametrize("columns", [1, 5, 8192, 8193, 50_304, 128_256])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_kernel_equals_autograd_in_double_precision(columns: int, dtype: torch.dtype) -> None:
    generator = torch.Generator(DEVICE).manual_seed(1)
    logits = (3 * torch.randn(9, columns, device=DEVICE, generator=generator)).to(dtype)
    targets = torch.randint(columns, (9,), device=DEVICE, generator=generator)
    targets[4] = IGNORED_TARGET
    exact = logits.double().requires_grad_()
    expected = torch.nn.functional.cross_entropy(exact, targets, reduction="none", ignore_index=IGNORED_TARGET)
    (slopes,) = torch.autograd.grad(expected.sum(), exact)
    losses = torch.empty(9, device=DEVICE)
    differentiate_rows(logits, targets, losses, 2.0)
    assert torch.allclose(losses.double(), expected, rtol=1e-5, atol=1e-6)
    assert torch.allclose(logits.double() / 2, slopes, rtol=4 * torch.finfo(dtype).eps, atol=1e-6)
    assert not logits[4].any()


def test_a_row_of_infinities_is_nan() -> None:
    logits = torch.zeros(2, 100, device=DEVICE)
    logits[0, 3] = torch.inf
    losses = torch.empty(2, device=DEVICE)
    differentiate_rows(logits, torch.tensor([1, 1], device=DEVICE), losses, 1.0)
    assert losses.isnan().tolist() == [True, False]


@pytest.mark.parametrize("chunk", [0, 64, 100])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_loss_and_gradients_equal_those_of_all_logits(chunk: int, dtype: torch.dtype) -> None:
    head, hidden, targets = make_inputs()
    exact = compute_loss(head(hidden), targets)
    expected = torch.autograd.grad(exact, (hidden, head.weight))
    with torch.autocast("cuda", dtype, enabled=dtype != torch.float32):
        loss = head(hidden, objective=CrossEntropy(chunk).from_hidden, targets=targets)
    gradients = torch.autograd.grad(loss, (hidden, head.weight))
    tolerance = 2e-5 if dtype == torch.float32 else 8 * torch.finfo(dtype).eps
    assert loss.item() == pytest.approx(exact.item(), rel=tolerance)
    for gradient, reference in zip(gradients, expected, strict=True):
        assert gradient.dtype == reference.dtype
        assert (gradient - reference).norm() < tolerance * reference.norm()


def test_weights_in_bf16_get_gradients_in_bf16() -> None:
    head, hidden, targets = make_inputs()
    half, states = head.to(torch.bfloat16), hidden.detach().to(torch.bfloat16).requires_grad_()
    for chunk in (0, 64):
        loss = half(states, objective=CrossEntropy(chunk).from_hidden, targets=targets)
        gradients = torch.autograd.grad(loss, (states, half.weight))
        assert [gradient.dtype for gradient in gradients] == [torch.bfloat16] * 2


def test_a_compiled_loss_is_the_same_to_the_bit() -> None:
    torch.compiler.reset()
    head, hidden, targets = make_inputs()

    def run(hidden: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cuda", torch.bfloat16):
            return head(hidden, objective=CrossEntropy(64).from_hidden, targets=targets)

    results = []
    for function in (run, torch.compile(run, fullgraph=True)):
        loss = function(hidden, targets)
        results.append((loss.detach(), *torch.autograd.grad(loss, (hidden, head.weight))))
    assert torch.equal(results[0][0], results[1][0])
    for eager, compiled in zip(*results, strict=True):
        assert torch.allclose(eager, compiled, rtol=1e-5, atol=1e-8)


def test_the_operation_describes_its_results() -> None:
    head, hidden, targets = make_inputs()
    arguments = (hidden.detach(), head.weight.detach(), targets, 100, 1.0, 1.0, True, True, True)
    torch.library.opcheck(differentiate_head, arguments)


def make_inputs() -> tuple[Head, torch.Tensor, torch.Tensor]:
    generator = torch.Generator(DEVICE).manual_seed(1)
    head = Head(128, 5000).to(DEVICE)
    torch.nn.init.normal_(head.weight, std=0.1, generator=generator)
    hidden = torch.randn(300, 128, device=DEVICE, generator=generator, requires_grad=True)
    targets = torch.randint(5000, (300,), device=DEVICE, generator=generator)
    targets[::7] = IGNORED_TARGET
    return head, hidden, targets
