"""Layers with the same input as one product, and when they are."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
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


@pytest.mark.parametrize(
    ("stored", "is_cast", "joins"),
    [(torch.float32, True, True), (torch.bfloat16, True, False), (torch.bfloat16, False, False)],
    ids=["fp32", "bf16", "fsdp"],
)
def test_weights_are_joined_where_autocast_casts_them(stored: torch.dtype, is_cast: bool, joins: bool) -> None:
    """A joint copy of weights that are not cast would stay in memory until the backward pass."""
    x: Any = SimpleNamespace(is_cuda=True, device=torch.device("cpu"), dtype=torch.bfloat16)
    layers = tuple(layer.to(stored) for layer in make_layers(has_bias=True))
    compiles = patch.object(torch.compiler, "is_compiling", lambda: True)
    with compiles, torch.autocast("cpu", torch.bfloat16, enabled=is_cast):
        assert can_join(x, layers) == joins


def make_layers(has_bias: bool) -> tuple[nn.Linear, ...]:
    torch.manual_seed(1)
    return tuple(nn.Linear(8, outputs, bias=has_bias) for outputs in (12, 4, 4))
