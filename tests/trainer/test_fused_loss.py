"""Head and loss as one operation, as on a GPU, whose kernel is replaced by plain operations here."""

from __future__ import annotations

from unittest.mock import patch

import pytest
import torch

from trainer.models import fused_loss
from trainer.models.functional import IGNORED_TARGET, compute_loss
from trainer.models.head import Head
from trainer.objective import CrossEntropy

TOKENS, DIM, VOCABULARY = 40, 16, 61


@pytest.mark.parametrize("chunk", [0, 1, 7, 100])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_loss_and_gradients_equal_those_of_all_logits(chunk: int, dtype: torch.dtype) -> None:
    head, hidden, targets = make_inputs()
    exact = compute_loss(head(hidden), targets)
    expected = torch.autograd.grad(exact, (hidden, head.weight))
    loss, *gradients = run_fused(head, hidden, targets, chunk, dtype)
    tolerance = 1e-5 if dtype == torch.float32 else 8 * torch.finfo(dtype).eps
    assert loss.item() == pytest.approx(exact.item(), rel=tolerance)
    for gradient, reference in zip(gradients, expected, strict=True):
        assert gradient.dtype == reference.dtype
        assert (gradient - reference).norm() < tolerance * reference.norm()


def test_a_frozen_head_has_no_gradient() -> None:
    head, hidden, targets = make_inputs()
    head.weight.requires_grad_(False)
    with patch.object(fused_loss, "is_available", lambda _device: True):
        loss = head(hidden, objective=CrossEntropy(7).from_hidden, targets=targets)
    expected = torch.autograd.grad(compute_loss(head(hidden), targets), hidden)[0]
    assert torch.allclose(torch.autograd.grad(loss, hidden)[0], expected, rtol=1e-5, atol=1e-8)


def test_the_compiler_sees_one_operation() -> None:
    torch.compiler.reset()
    head, hidden, targets = make_inputs()
    graphs: list[torch.fx.GraphModule] = []

    def keep(graph: torch.fx.GraphModule, _inputs: list[torch.Tensor]) -> torch.fx.GraphModule:
        graphs.append(graph)
        return graph

    def run(hidden: torch.Tensor) -> torch.Tensor:
        return head(hidden, objective=CrossEntropy(7).from_hidden, targets=targets)

    with patch.object(fused_loss, "is_available", lambda _device: True):
        loss = torch.compile(run, backend=keep, fullgraph=True)(hidden)
    assert loss.item() == pytest.approx(compute_loss(head(hidden), targets).item(), rel=1e-6)
    (graph,) = graphs
    assert "muster.differentiate_head" in str(graph.print_readable(print_output=False))


def test_the_operation_describes_its_results() -> None:
    head, hidden, targets = make_inputs()
    arguments = (hidden.detach(), head.weight.detach(), targets, 7, 1.0, 1.0, True, True, True)
    torch.library.opcheck(fused_loss.differentiate_head, arguments)


def run_fused(
    head: Head, hidden: torch.Tensor, targets: torch.Tensor, chunk: int, dtype: torch.dtype
) -> tuple[torch.Tensor, ...]:
    with (
        patch.object(fused_loss, "is_available", lambda _device: True),
        torch.autocast("cpu", dtype, enabled=dtype != torch.float32),
    ):
        loss = head(hidden, objective=CrossEntropy(chunk).from_hidden, targets=targets)
    return loss.detach(), *torch.autograd.grad(loss, (hidden, head.weight))


def make_inputs() -> tuple[Head, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    head = Head(DIM, VOCABULARY)
    torch.nn.init.normal_(head.weight, std=0.3, generator=generator)
    hidden = torch.randn(TOKENS, DIM, generator=generator, requires_grad=True)
    targets = torch.randint(VOCABULARY, (TOKENS,), generator=generator)
    targets[::7] = IGNORED_TARGET
    return head, hidden, targets
