"""muster's own sharded data parallelism with models of unusual shapes, and its failures."""

from __future__ import annotations

import os
import re
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.trainer.ranks import RanksError, on_ranks
from tests.trainer.test_engine_fsdp import record
from trainer.config.layout import Layout
from trainer.config.schema import ParallelConfig
from trainer.parallel.apply import parallelize
from trainer.parallel.engine import Engine, Recipe
from trainer.parallel.gradients import to_local
from trainer.parallel.mesh import Mesh


class Recomputing(nn.Module):
    """A model that recomputes its layers itself, as those of transformers do."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.first = nn.Linear(4, 4)
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4)) for _ in range(3))
        self.is_reentrant: bool | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for layer in self.layers:
            x = layer(x) if self.is_reentrant is None else checkpoint(layer, x, use_reentrant=self.is_reentrant)
        return x


def test_frozen_layers_at_the_start_are_gathered_once() -> None:
    """Nothing of their forward pass needs a gradient: they are freed, and have no backward pass."""
    for gathers, whole in on_ranks(f"{__name__}:gather_frozen", ranks=2):
        # Root and 3 layers in forward, the last of which stays whole, and the trained one of the others again.
        assert gathers == 5
        assert whole == [True, False, False, True]


def gather_frozen() -> tuple[int, list[bool]]:
    """Return the all-gathers of a step, and which blocks are whole after the forward pass."""
    model = Recomputing()
    model.first.requires_grad_(False)
    model.layers[0].requires_grad_(False)
    engine: Any = spread(model)
    events: list[str] = []
    for block in engine._passes.blocks:
        record(events, "gather", block, "begin_gather", lambda block=block: block._gather is None)
    batch = {"inputs": torch.ones(1, 4), "targets": torch.zeros(1)}
    states: list[bool] = []

    def measure(outputs: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
        states.extend(block.is_whole for block in engine._passes.blocks)
        return outputs.sum()

    engine.forward_backward(batch, measure, 1, None)
    return len(events), states


@pytest.mark.parametrize("is_reentrant", [False, True])
def test_a_model_may_recompute_its_layers_itself(is_reentrant: bool) -> None:
    results = on_ranks(f"{__name__}:differentiate_recomputing", ranks=2, is_reentrant=is_reentrant)
    for gradients, expected, gathers in results:
        assert gradients == expected
        # Root and 3 layers, and the layers again; the last one stays whole unless its forward pass has no graph.
        assert gathers == (7 if is_reentrant else 6)


def differentiate_recomputing(is_reentrant: bool) -> tuple[list[float], list[float], int]:
    """Return the gradients of a model that recomputes its layers, those of the plain model, and the first's gathers."""
    results = []
    events: list[str] = []
    for recomputes in (True, False):
        model = Recomputing()
        model.is_reentrant = is_reentrant if recomputes else None
        engine: Any = spread(model)
        for block in engine._passes.blocks if recomputes else ():
            record(events, "gather", block, "begin_gather", lambda block=block: block._gather is None)
        differentiate(engine, torch.arange(8.0).view(2, 4) / 8)
        results.append(torch.cat([take_gradient(value).flatten() for _, value in engine.named_parameters()]).tolist())
    return results[0], results[1], len(events)


class Hiding(nn.Module):
    """A layer whose output is in an object that torch does not look into, next to a tensor without a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.full((2,), 2.0))

    def forward(self, hidden: Any) -> Any:
        value = hidden[1].value if isinstance(hidden, tuple) else hidden
        return value.detach(), SimpleNamespace(value=value * self.factor)


class HidingLayers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Hiding() for _ in range(3))

    def forward(self, x: Any) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        output: torch.Tensor = x[1].value
        return output


def test_a_block_whose_outputs_are_hidden_stays_whole_for_its_backward_pass() -> None:
    assert on_ranks(f"{__name__}:differentiate_hiding", ranks=2) == [[4.0] * 3] * 2


def differentiate_hiding() -> list[float]:
    engine = spread(HidingLayers())
    differentiate(engine, torch.ones(1, 2))
    return torch.cat([take_gradient(value).flatten() for _, value in engine.named_parameters()]).tolist()


class Lending(nn.Module):
    """A layer that returns its weight."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.full((2,), 2.0))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x * self.factor, self.factor


class LendingLayers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Lending() for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x, _ = layer(x)
        return x


def test_a_weight_that_a_layer_returns_collects_no_hooks() -> None:
    assert on_ranks(f"{__name__}:count_weight_hooks", ranks=2) == [0, 0]


def count_weight_hooks() -> int:
    engine: Any = spread(LendingLayers())
    for _ in range(2):
        differentiate(engine, torch.ones(1, 2))
    return sum(len(weight._backward_hooks or ()) for block in engine._passes.blocks for weight in block.whole)


class Choice(nn.Module):
    """A layer whose ranks use different weights: rank r the weights `common` and `branches.r`."""

    def __init__(self) -> None:
        super().__init__()
        self.common = nn.Parameter(torch.ones(1))
        self.branches = nn.ParameterList([torch.ones(1) for _ in range(3)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.common * self.branches[dist.get_rank()]


def test_unused_weights_are_zeros_in_the_average() -> None:
    """On 2 ranks, each of the first two branches has a gradient of 1 on one rank, and the third on none."""
    # Each weight is one row, which the first rank has.
    assert on_ranks(f"{__name__}:differentiate_choice", ranks=2) == [[1.0, 0.5, 0.5, 0.0], []]


def differentiate_choice() -> list[float]:
    engine = spread(nn.Sequential(Choice()))
    differentiate(engine, torch.ones(1, 1))
    return torch.cat([take_gradient(value).flatten() for _, value in engine.named_parameters()]).tolist()


class Gated(nn.Module):
    """A layer with two weights; rank 1 can leave out the gate."""

    def __init__(self, factor: float, *, has_choice: bool) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.full((2,), factor))
        self.gate = nn.Parameter(torch.ones(2))
        self.has_choice = has_choice

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x * self.factor
        return x if self.has_choice and dist.get_rank() == 1 else x * self.gate


class GatedLayers(nn.Module):
    """Layers of one size, so that a message of one of them would fit where another one is expected."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.ones(2))
        self.layers = nn.ModuleList(Gated(index + 1.0, has_choice=index == 1) for index in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x * self.first
        for layer in self.layers:
            x = layer(x)
        return x


@pytest.mark.parametrize("zero", [1, 2, 3])
@pytest.mark.parametrize("ahead", [0, 1])
def test_a_weight_that_one_rank_leaves_out_does_not_mix_up_layers(zero: int, ahead: int) -> None:
    """Ranks would average different layers if one of them sent a layer later because a gradient of it is missing."""
    results = on_ranks(f"{__name__}:differentiate_gated", ranks=2, zero=zero, ahead=ahead)
    # The factors are 1, 2 and 3. The gate of the second layer has a gradient of 6 on rank 0 only.
    assert results == [[6.0, 6.0, 6.0, 3.0, 3.0, 2.0, 6.0]] * 2


def differentiate_gated(zero: int, ahead: int) -> list[float]:
    engine = spread(GatedLayers(), zero=zero, prefetch=ahead)
    differentiate(engine, torch.ones(1, 2))
    return torch.cat([take_gradient(value).flatten() for _, value in engine.named_parameters()]).tolist()


def test_all_replicas_start_from_the_values_of_the_first() -> None:
    """With 2 replicas of 2 shards, ranks 0 and 1 are the first replica."""
    by_rank = on_ranks(f"{__name__}:start_from_other_values", ranks=4)
    assert by_rank == [([0.0], [0.0]), ([1.0], [0.0])] * 2


def start_from_other_values() -> tuple[list[float], list[float]]:
    """Return, on a rank, the weights and buffers after a start with the rank's number everywhere."""

    def fill(modules: Any) -> None:
        for value in [*modules[0].parameters(), *modules[0].buffers()]:
            to_local(value.detach()).fill_(dist.get_rank())

    class Norms(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList([nn.Linear(1, 2, bias=False)])
            self.register_buffer("table", torch.zeros(1))

        def init_buffers(self, _device: torch.device) -> None:
            pass

    engine = spread(Norms, fill=fill, strategy="hsdp", shard=2)
    weights = torch.cat([to_local(value.detach()).flatten() for _, value in engine.named_parameters()])
    return weights.tolist(), [float(value) for _, value in engine.named_buffers()]


def test_ranks_with_different_models_are_an_error_that_names_the_tensor() -> None:
    message = (
        r"(?s)rank 0: .*model: ranks have different models: rank 0 has 0.0.weight \[1, 2\] torch.float32, trained, "
    )
    message += r"where rank 1 has 0.0.weight \[1, 3\] torch.float32, trained; .*rank 1: .*ranks have differ"
    with pytest.raises(RanksError, match=message):
        on_ranks(f"{__name__}:start_different_models", ranks=2)


def start_different_models() -> None:
    """Build models without memory, which nothing else compares."""
    spread(lambda: nn.Sequential(nn.ModuleList([nn.Linear(2 + dist.get_rank(), 1)])), fill=lambda _: None)


def test_a_scalar_weight_is_refused() -> None:
    message = r"model: factor has the shape \[\], and ranks share the rows of parameters; give it a dimension and a val"
    with pytest.raises(RanksError, match=message):
        on_ranks(f"{__name__}:start_with_scalar", ranks=1)


def start_with_scalar() -> None:
    model = nn.Sequential(nn.Linear(1, 1))
    model.factor = nn.Parameter(torch.tensor(1.0))
    spread(model)


def test_ranks_raise_if_another_one_dies_in_the_backward_pass() -> None:
    with pytest.raises(RanksError) as error:
        # A rank that misses no message of the dead one may wait for the other until the end.
        on_ranks(f"{__name__}:die_in_backward", ranks=3, failures=2)
    text = str(error.value)
    assert "rank 2: died with exit code 7" in text
    # The others fail in a collective that the dead rank is missing from, and name it.
    assert re.search(r"It was the (all-gather|reduce-scatter) of block \d", text), text


def die_in_backward() -> None:
    engine = spread(Recomputing())
    inputs = torch.ones(1, 4)
    differentiate(engine, inputs)
    if dist.get_rank() == 2:
        passes: Any = engine
        passes._passes.blocks[1].whole[0].register_hook(lambda _: os._exit(7))
    differentiate(engine, inputs)


def spread(model: Any, *, fill: Any = None, strategy: Any = "fsdp", shard: int = 0, **options: Any) -> Engine:
    world = dist.get_world_size()
    parallel = ParallelConfig(strategy=strategy, shard=shard, engine="muster", **options)
    layout = Layout(shard=shard or world, replicate=world // (shard or world))
    mesh = Mesh(layout, dist.get_rank(), torch.device("cpu"), uses_fully_shard=True)
    return parallelize(model, Recipe(parallel), mesh, fill)


def differentiate(engine: Engine, inputs: torch.Tensor) -> None:
    batch = {"inputs": inputs, "targets": torch.zeros(len(inputs))}
    engine.forward_backward(batch, lambda outputs, _: outputs.sum(), len(inputs), None)


def take_gradient(parameter: nn.Parameter) -> torch.Tensor:
    assert parameter.grad is not None
    return to_local(parameter.grad)
