"""Layers with the same input as one product, and when they are."""

from __future__ import annotations

from collections import Counter
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from trainer.models import projections
from trainer.models.projections import can_join, multiply_jointly, project_jointly
from trainer.parallel.recompute import _keep_products


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
    [
        (torch.float32, True, True),
        (torch.bfloat16, True, True),
        (torch.bfloat16, False, True),
        (torch.float32, False, False),
        (torch.float16, True, False),
    ],
    ids=["fp32", "bf16", "fsdp", "gathered in fp32", "stored in fp16"],
)
def test_weights_in_half_precision_are_joined_and_those_that_autocast_casts_to_it(
    stored: torch.dtype, is_cast: bool, joins: bool
) -> None:
    x: Any = SimpleNamespace(is_cuda=True, device=torch.device("cpu"), dtype=torch.bfloat16)
    layers = tuple(layer.to(stored) for layer in make_layers(has_bias=True))
    compiles = patch.object(torch.compiler, "is_compiling", lambda: True)
    with compiles, torch.autocast("cpu", torch.bfloat16, enabled=is_cast):
        assert can_join(x, layers) == joins


@pytest.mark.parametrize("compiles", [True, False])
@pytest.mark.parametrize("has_bias", [True, False])
def test_a_joint_product_of_stored_weights_keeps_no_copy_of_them(has_bias: bool, compiles: bool) -> None:
    """A joint weight that is kept until the backward pass would hold what fsdp frees."""
    layers, x = make_layers(has_bias), torch.randn(2, 5, 8, requires_grad=True)
    leaves = [x, *nn.ModuleList(layers).parameters()]
    results, saved = [], []

    def record(tensor: torch.Tensor) -> torch.Tensor:
        saved.append(tensor)
        return tensor

    for joins in (True, False):
        function = torch.compile(project, backend="aot_eager", fullgraph=True) if joins and compiles else project
        with (
            patch.object(projections, "can_join", lambda _x, _layers, joins=joins: joins),
            torch.autograd.graph.saved_tensors_hooks(record, lambda tensor: tensor),
        ):
            outputs = function(x, layers)
        total = sum(output.square().sum() for output in outputs)
        results.append((*outputs, *torch.autograd.grad(total, leaves)))
    for joined, separate in zip(*results, strict=True):
        assert torch.allclose(joined, separate, rtol=1e-5, atol=1e-5)
    weights = {layer.weight.data_ptr() for layer in layers}
    assert weights <= {tensor.data_ptr() for tensor in saved}
    assert not [tensor for tensor in saved if tensor.shape[-2:] in {(20, 8), (8, 20)}]


def test_parts_of_the_model_that_are_frozen_get_no_gradient() -> None:
    layers, x = make_layers(has_bias=True), torch.randn(2, 5, 8, requires_grad=True)
    nn.ModuleList(layers).requires_grad_(requires_grad=False)
    with patch.object(projections, "can_join", lambda _x, _layers: True):
        sum(output.sum() for output in project_jointly(x, layers)).backward()
    expected = sum(layer.weight.sum(0) for layer in layers)
    assert torch.allclose(x.grad, expected.expand_as(x), rtol=1e-5, atol=1e-5)
    assert all(layer.weight.grad is None for layer in layers)


def test_selective_recomputation_stores_the_joint_product() -> None:
    layers, x = make_layers(has_bias=False), torch.randn(2, 5, 8, requires_grad=True)
    contexts = partial(create_selective_checkpoint_contexts, _keep_products)
    with patch.object(projections, "can_join", lambda _x, _layers: True), CountedOperations() as counted:
        outputs = checkpoint(project, x, layers, use_reentrant=False, context_fn=contexts)
        sum(output.square().sum() for output in outputs).backward()
    assert counted.calls[multiply_jointly._opoverload] == 1


class CountedOperations(TorchDispatchMode):
    """A context that counts the calls of operations."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[Any] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls[func] += 1
        return func(*args, **(kwargs or {}))


def project(x: torch.Tensor, layers: tuple[nn.Linear, ...]) -> list[torch.Tensor]:
    return list(project_jointly(x, layers))


def make_layers(has_bias: bool) -> tuple[nn.Linear, ...]:
    torch.manual_seed(1)
    return tuple(nn.Linear(8, outputs, bias=has_bias) for outputs in (12, 4, 4))
