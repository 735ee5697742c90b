"""The optimizers match torch's, with gradients scaled and bad updates skipped on the device."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from trainer.config.schema import OptimizerConfig
from trainer.optimizer import Optimizer

ADAMW = OptimizerConfig(name="adamw", weight_decay=0.1, beta2=0.99)
SGD = OptimizerConfig(name="sgd", weight_decay=0.1, momentum=0.9)
PLAIN = OptimizerConfig(name="sgd", weight_decay=0.1, momentum=0.0)
RULES = {"adamw": ADAMW, "sgd with momentum": SGD, "sgd": PLAIN}


@pytest.mark.parametrize("config", RULES.values(), ids=RULES)
def test_updates_match_those_of_torch(config: OptimizerConfig) -> None:
    ours, theirs = parameters(), parameters()
    optimizer, expected = Optimizer(ours.items(), config), torch_optimizer(config, theirs)
    for step in range(5):
        for name, value in gradients(step).items():
            ours[name].grad, theirs[name].grad = value * 8, value.clone()
        optimizer.step(1e-2, torch.tensor(8.0), torch.tensor(0.0))
        expected.step()
    for name, value in ours.items():
        torch.testing.assert_close(value, theirs[name])


@pytest.mark.parametrize("config", RULES.values(), ids=RULES)
def test_a_bad_update_changes_nothing(config: OptimizerConfig) -> None:
    ours = parameters()
    optimizer = Optimizer(ours.items(), config)
    set_gradients(ours, 0)
    optimizer.step(1e-2, None, torch.tensor(0.0))
    before = {name: value.clone() for name, value in {**ours, **optimizer.tensors()}.items()}
    ours["matrix"].grad = torch.full((4, 3), torch.nan)
    optimizer.step(1e-2, torch.tensor(torch.nan), torch.tensor(1.0))
    after = {**ours, **optimizer.tensors()}
    assert all(torch.equal(after[name], value) for name, value in before.items())


def test_only_matrices_decay() -> None:
    ours = parameters()
    optimizer = Optimizer(ours.items(), ADAMW)
    for value in ours.values():
        value.grad = torch.zeros_like(value)
    before = {name: value.detach().clone() for name, value in ours.items()}
    optimizer.step(1e-2, None, None)
    assert torch.equal(ours["vector"], before["vector"])
    torch.testing.assert_close(ours["matrix"].detach(), before["matrix"] * (1 - 1e-3))


def test_a_parameter_without_gradient_does_not_change() -> None:
    ours = parameters()
    optimizer = Optimizer(ours.items(), ADAMW)
    ours["matrix"].grad = torch.ones(4, 3)
    before = ours["vector"].detach().clone()
    optimizer.step(1e-2, None, None)
    assert torch.equal(ours["vector"], before)


def parameters() -> dict[str, torch.nn.Parameter]:
    generator = torch.Generator().manual_seed(1)
    shapes = {"matrix": (4, 3), "vector": (5,)}
    return {name: torch.nn.Parameter(torch.randn(shape, generator=generator)) for name, shape in shapes.items()}


def gradients(step: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(step)
    return {"matrix": torch.randn(4, 3, generator=generator), "vector": torch.randn(5, generator=generator)}


def set_gradients(values: dict[str, torch.nn.Parameter], step: int) -> None:
    for name, value in gradients(step).items():
        values[name].grad = value


def torch_optimizer(config: OptimizerConfig, values: dict[str, torch.nn.Parameter]) -> Any:
    groups = [
        {"params": [values["matrix"]], "weight_decay": config.weight_decay},
        {"params": [values["vector"]], "weight_decay": 0.0},
    ]
    if config.name == "sgd":
        return torch.optim.SGD(groups, lr=1e-2, momentum=config.momentum)
    return torch.optim.AdamW(groups, lr=1e-2, betas=(config.beta1, config.beta2), eps=config.eps)
