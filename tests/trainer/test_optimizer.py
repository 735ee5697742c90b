"""The optimizers match torch's, with gradients scaled and bad updates skipped on the device."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from trainer.api import Trainer
from trainer.config.errors import ConfigError
from trainer.config.schema import MomentFormat, OptimizerConfig, ParallelConfig, ScheduleConfig
from trainer.optimizers.groups import choose_group
from trainer.optimizers.optimizer import Optimizer

ADAMW = OptimizerConfig(name="adamw", weight_decay=0.1, beta2=0.99)
SGD = OptimizerConfig(name="sgd", weight_decay=0.1, momentum=0.9)
PLAIN = OptimizerConfig(name="sgd", weight_decay=0.1, momentum=0.0)
MUON = OptimizerConfig(name="muon", weight_decay=0.1)
RULES = {"adamw": ADAMW, "sgd with momentum": SGD, "sgd": PLAIN, "muon": MUON}
SHAPES = {"matrix": (8, 6), "tall": (9, 4), "vector": (5,), "head.weight": (3, 4)}


@pytest.mark.parametrize("config", RULES.values(), ids=RULES)
def test_updates_match_those_of_torch(config: OptimizerConfig) -> None:
    ours, theirs = parameters(), parameters()
    optimizer, expected = Optimizer(ours.items(), config), torch_optimizers(config, theirs)
    for step in range(20):
        for name, value in gradients(step).items():
            ours[name].grad, theirs[name].grad = value * 8, value.clone()
        optimizer.step(1e-2, torch.tensor(8.0), torch.tensor(0.0))
        for each in expected:
            each.step()
    for name, value in ours.items():
        torch.testing.assert_close(value, theirs[name])


@pytest.mark.parametrize("moments", ["fp32", "bf16", "int8"])
@pytest.mark.parametrize("name", ["adamw", "sgd", "muon"])
def test_a_bad_update_changes_nothing(name: Any, moments: MomentFormat) -> None:
    ours = parameters({"matrix": (4, 64), "vector": (5,)})
    optimizer = Optimizer(ours.items(), OptimizerConfig(name=name, moments=moments))
    set_gradients(ours, 0)
    optimizer.step(1e-2, None, torch.tensor(0.0), seed=1)
    before = {name: value.clone() for name, value in {**ours, **optimizer.tensors()}.items()}
    ours["matrix"].grad = torch.full((4, 64), torch.nan)
    optimizer.step(1e-2, torch.tensor(torch.nan), torch.tensor(1.0), seed=2)
    after = {**ours, **optimizer.tensors()}
    assert all(torch.equal(after[name], value) for name, value in before.items())


@pytest.mark.parametrize("config", [ADAMW, MUON], ids=["adamw", "muon"])
def test_only_matrices_decay(config: OptimizerConfig) -> None:
    ours = parameters()
    optimizer = Optimizer(ours.items(), config)
    for value in ours.values():
        value.grad = torch.zeros_like(value)
    before = {name: value.detach().clone() for name, value in ours.items()}
    optimizer.step(1e-2, None, None)
    assert torch.equal(ours["vector"], before["vector"])
    torch.testing.assert_close(ours["matrix"].detach(), before["matrix"] * (1 - 1e-3))


@pytest.mark.parametrize("config", [ADAMW, MUON], ids=["adamw", "muon"])
def test_a_parameter_without_gradient_does_not_change(config: OptimizerConfig) -> None:
    ours = parameters()
    optimizer = Optimizer(ours.items(), config)
    ours["matrix"].grad = torch.ones(8, 6)
    before = {name: value.detach().clone() for name, value in ours.items()}
    optimizer.step(1e-2, None, None)
    assert [name for name, value in ours.items() if not torch.equal(value, before[name])] == ["matrix"]


def test_a_frozen_parameter_has_no_state() -> None:
    ours = parameters()
    ours["matrix"].requires_grad_(False)
    names = Optimizer(ours.items(), ADAMW).tensors().keys()
    assert "vector.first" in names
    assert not any(name.startswith("matrix") for name in names)


def test_an_update_of_muon_is_orthogonal_and_as_large_as_one_of_adamw() -> None:
    ours = parameters({"matrix": (64, 32)})
    before = ours["matrix"].detach().clone()
    optimizer = Optimizer(ours.items(), OptimizerConfig(name="muon", weight_decay=0))
    set_gradients(ours, 0)
    optimizer.step(1e-2, None, None)
    change = (before - ours["matrix"].detach()) / 1e-2
    assert float(change.square().mean().sqrt()) == pytest.approx(0.2, rel=0.2)
    values = torch.linalg.svdvals(change) / (0.2 * math.sqrt(64))
    assert 0.6 < float(values.min()) <= float(values.max()) < 1.3


def test_muon_leaves_heads_embeddings_and_other_shapes_to_adamw() -> None:
    config = OptimizerConfig(name="muon", muon_exclude=("head.*", "*.gate"))
    shapes = {"layers.0.q": (4, 4), "layers.0.gate": (4, 4), "head.weight": (9, 4), "norm": (4,), "conv": (4, 3, 3, 3)}
    rules = {name: choose_group(name, shape, config, is_embedding=False).rule for name, shape in shapes.items()}
    others = dict.fromkeys(["layers.0.gate", "head.weight", "norm", "conv"], "adamw")
    assert rules == {"layers.0.q": "muon", **others}
    assert choose_group("layers.0.q", (4, 4), config, is_embedding=True).rule == "adamw"
    optimizer = Optimizer(parameters().items(), MUON, embeddings={"tall"})
    assert optimizer.describe_groups() == ["optimizer: muon for matrix; adamw for tall, head.weight, vector"]
    assert Optimizer(parameters().items(), ADAMW).describe_groups() == []
    assert {"matrix.momentum", "tall.first", "vector.second"} <= optimizer.tensors().keys()


def test_the_first_matching_pattern_decides_the_weight_decay() -> None:
    config = OptimizerConfig(weight_decay=0.1, decay_groups=("head.*=0", "*.weight=0.5", "*bias=0.2"))
    shapes = {"head.weight": (3, 4), "q.weight": (4, 4), "q.bias": (4,), "table": (4, 4), "norm": (4,)}
    decays = {name: choose_group(name, shape, config, is_embedding=False).decay for name, shape in shapes.items()}
    assert decays == {"head.weight": 0.0, "q.weight": 0.5, "q.bias": 0.2, "table": 0.1, "norm": 0.0}


def test_a_pattern_that_matches_nothing_is_rejected() -> None:
    config = OptimizerConfig(decay_groups=("hed.*=0", "vector=0.1"))
    with pytest.raises(ConfigError) as raised:
        Optimizer(parameters().items(), config)
    assert str(raised.value) == (
        "optimizer.decay_groups: 'hed.*' matches no parameter; parameters are matrix, tall, vector and 1 more"
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"optimizer": OptimizerConfig(decay_groups=("head",))}, "optimizer.decay_groups: 'head' is not PATTERN=DECAY"),
        ({"optimizer": MUON, "strategy": ParallelConfig(strategy="single", tensor=2)}, "muon needs whole matrices"),
        ({"schedule": ScheduleConfig(kind="inverse_sqrt")}, "schedule.warmup: 0, but inverse_sqrt decays"),
    ],
)
def test_the_api_rejects_settings_that_conflict(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Trainer(torch.nn.Linear(2, 2), **options)


def test_muon_without_matrices_is_rejected() -> None:
    with pytest.raises(ConfigError, match="muon, but no parameter is a matrix outside embeddings and"):
        Optimizer(parameters({"vector": (5,), "head.weight": (3, 4)}).items(), MUON)


def parameters(shapes: dict[str, tuple[int, ...]] | None = None) -> dict[str, torch.nn.Parameter]:
    generator = torch.Generator().manual_seed(1)
    items = (shapes or SHAPES).items()
    return {name: torch.nn.Parameter(torch.randn(shape, generator=generator)) for name, shape in items}


def gradients(step: int, shapes: dict[str, tuple[int, ...]] | None = None) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(step)
    return {name: torch.randn(shape, generator=generator) for name, shape in (shapes or SHAPES).items()}


def set_gradients(values: dict[str, torch.nn.Parameter], step: int) -> None:
    shapes = {name: tuple(value.shape) for name, value in values.items()}
    for name, value in gradients(step, shapes).items():
        values[name].grad = value


def torch_optimizers(config: OptimizerConfig, values: dict[str, torch.nn.Parameter]) -> list[Any]:
    matrices = [values["matrix"], values["tall"]]
    groups = [
        {"params": [values["head.weight"], *([] if config.name == "muon" else matrices)], "weight_decay": 0.1},
        {"params": [values["vector"]], "weight_decay": 0.0},
    ]
    if config.name == "sgd":
        return [torch.optim.SGD(groups, lr=1e-2, momentum=config.momentum)]
    adamw = torch.optim.AdamW(groups, lr=1e-2, betas=(config.beta1, config.beta2), eps=config.eps)
    if config.name == "adamw":
        return [adamw]
    muon = torch.optim.Muon(matrices, lr=1e-2, weight_decay=0.1, momentum=0.95, adjust_lr_fn="match_rms_adamw")
    return [adamw, muon]
