"""Layers with the same input as one product, and when they are."""

from __future__ import annotations

from unittest.mock import patch

import pytest
import torch
from torch import nn

from trainer.models import projections
from trainer.models.projections import can_join, project_jointly


@pytest.mark.parametrize("has_bias", [True, False])
def test_one_product_equals_those_of_the_layers(has_bias: bool) -> None:
    layers = make_layers(has_bias)
    x = torch.randn(2, 5, 8, requires_grad=True)
    results = []
    for joins in (True, False):
        with (
            patch.object(projections, "can_join", lambda _x, _layers, joins=joins: joins),
            torch.autocast("cpu", torch.bfloat16),
        ):
            outputs = project_jointly(x, layers)
        assert [output.shape[-1] for output in outputs] == [12, 4, 4]
        total = sum(output.float().square().sum() for output in outputs)
        results.append((*outputs, *torch.autograd.grad(total, [x, *nn.ModuleList(layers).parameters()])))
    for joined, separate in zip(*results, strict=True):
        assert torch.allclose(joined, separate, rtol=2e-2, atol=2e-2)


def test_nothing_is_joined_on_a_cpu_or_outside_of_a_graph() -> None:
    with torch.autocast("cpu", torch.bfloat16):
        assert not can_join(torch.zeros(1, 8), make_layers(has_bias=False))


def make_layers(has_bias: bool) -> tuple[nn.Linear, ...]:
    torch.manual_seed(1)
    return tuple(nn.Linear(8, outputs, bias=has_bias) for outputs in (12, 4, 4))
