"""The layers of any tree of modules are found, named in the log, and refused if there are none."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from tests.trainer.own_shapes import Backbone, HuggingFaceShaped, Layer, make_shape
from tests.trainer.test_parallel_refusals import make_single_mesh
from trainer.config.errors import ConfigError
from trainer.config.load import load
from trainer.config.schema import CompileConfig, ParallelConfig
from trainer.models.functional import compute_loss
from trainer.models.registry import build_model
from trainer.parallel.apply import parallelize
from trainer.parallel.engine import Recipe
from trainer.parallel.units import find_units


def stage(count: int) -> nn.Sequential:
    return nn.Sequential(*[nn.TransformerEncoderLayer(8, 2, 8) for _ in range(count)])


def convolution() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3), nn.ReLU())


class Bare(nn.Module):
    """A model whose weights are in no module of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2, 2))
        self.list = nn.ParameterList([torch.ones(2)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight + self.list[0]


class Deep(nn.Module):
    """Layers two wrappers down, without a list."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.ModuleDict({"body": nn.Transformer(8, 2, 2, 2, 8, batch_first=True)})


FOUND = {
    "hugging face": (make_shape("hugging face"), "model.layers.0 model.layers.1 model.layers.2"),
    "hugging face, tied": (make_shape("hugging face, tied"), "model.layers.0 model.layers.1 model.layers.2"),
    "nanogpt": (make_shape("nanogpt"), "transformer.h.0 transformer.h.1 transformer.h.2"),
    "looped": (make_shape("looped"), "model.layers.0"),
    "a backbone in a sequence": (nn.Sequential(Backbone(), nn.Linear(8, 2)), "0.layers.0 0.layers.1 0.layers.2"),
    "encoder and decoder": (
        Deep(),
        "inner.body.encoder.layers.0 inner.body.encoder.layers.1 "
        "inner.body.decoder.layers.0 inner.body.decoder.layers.1",
    ),
    "stages of layers": (nn.Sequential(nn.Conv2d(3, 8, 1), stage(2), stage(1)), "1.0 1.1 2.0"),
    "small sequences": (nn.Sequential(convolution(), convolution(), nn.Linear(3, 2)), "0 1"),
    "lists of lists": (nn.ModuleList([nn.ModuleList([Layer()]), nn.ModuleList([Layer()])]), "0.0 1.0"),
    "single operations": (nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2)), "0 2"),
    "children without a list": (nn.Bilinear(2, 2, 2), ""),
    "bare weights": (Bare(), ""),
}


@pytest.mark.parametrize(("model", "names"), FOUND.values(), ids=FOUND)
def test_units_are_the_layers_of_the_outermost_lists(model: nn.Module, names: str) -> None:
    assert " ".join(unit.name for unit in find_units(model).layers) == names


@pytest.mark.parametrize("preset", ["tiny-llama", "tiny-gpt2", "tiny-resnet", "tiny-mlp"])
def test_units_of_our_models_are_their_layers(preset: str) -> None:
    model: Any = build_model(load(preset, []).model)
    assert [unit.module for unit in find_units(model).layers] == list(model.layers.values())


def test_a_line_and_a_record_describe_the_units() -> None:
    units = find_units(make_shape("sharing layers"))
    assert units.summarize() == [
        {"class": "Layer", "count": 3, "first": "model.layers.0", "last": "model.layers.2", "parameters": 888}
    ]
    assert units.describe() == (
        "3 x Layer (model.layers.0 to model.layers.2) hold 79% of the weights, the largest 30.6%; "
        "other weights: model.embed_tokens, model.norm, lm_head; "
        "not sharded on their own because they share weights: model.layers.0, model.layers.2"
    )
    assert find_units(Bare()).describe() == "none: Bare is handled as a whole"


REFUSED = {
    "parallel.zero: 3": Recipe(ParallelConfig(strategy="fsdp")),
    "parallel.recompute: full": Recipe(ParallelConfig(strategy="single", recompute="full")),
    "compile.mode: blocks": Recipe(ParallelConfig(strategy="single"), compiled=CompileConfig(mode="blocks")),
}


@pytest.mark.parametrize("setting", REFUSED)
def test_a_model_without_layers_is_refused_where_layers_are_needed(setting: str) -> None:
    fix = "2 or 1" if "zero" in setting else "none"
    with pytest.raises(ConfigError) as error:
        parallelize(Bare(), REFUSED[setting], make_single_mesh())
    assert str(error.value) == (
        f"{setting}, but Bare has no layers that could be handled one by one; "
        f"put layers into an nn.ModuleList or nn.Sequential, or use {fix}"
    )


def test_two_weights_of_one_name_are_refused() -> None:
    model = nn.Linear(2, 2)
    model.add_module("module", nn.Linear(2, 2))
    with pytest.raises(ConfigError, match="model: two weights would be called weight in a checkpoint; rename the part"):
        parallelize(model, Recipe(ParallelConfig(strategy="single")), make_single_mesh())


def test_layers_that_are_never_called_cannot_be_recomputed() -> None:
    recipe = Recipe(ParallelConfig(strategy="single", recompute="full"))
    engine = parallelize(make_shape("bypassing"), recipe, make_single_mesh())
    with pytest.raises(ConfigError, match=r"model: Bypassing does not call its layers model.layers.0, .*; call each"):
        engine.forward_backward(tokens(), compute_loss, 2, None)


@pytest.mark.parametrize("wraps", [False, True])
def test_recomputing_stores_only_the_inputs_of_layers(wraps: bool) -> None:
    stored = {mode: count_stored(mode, wraps=wraps) for mode in ("none", "full")}
    # Three layers store their norm, two products and an activation each; with recomputation only their input.
    assert stored["full"] < stored["none"] / 3


def count_stored(mode: Any, *, wraps: bool) -> int:
    """Return the bytes that a forward pass stores for the backward pass, without weights."""
    shape = HuggingFaceShaped()
    model = nn.Sequential(shape) if wraps else shape
    parallelize(model, Recipe(ParallelConfig(strategy="single", recompute=mode)), make_single_mesh())
    weights = {weight.untyped_storage().data_ptr() for weight in model.parameters()}
    storages: dict[int, int] = {}

    def store(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.untyped_storage().data_ptr() not in weights:
            storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(store, lambda tensor: tensor):
        outputs = model(tokens()["inputs"])
    del outputs
    return sum(storages.values())


def tokens() -> dict[str, torch.Tensor]:
    inputs = torch.arange(8).view(2, 4)
    return {"inputs": inputs, "targets": inputs + 1}
