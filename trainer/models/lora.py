"""LoRA: train a low-rank change of chosen linear layers while all other weights stay frozen.

See https://arxiv.org/abs/2106.09685.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from trainer.config.errors import ConfigError, ConfigProblem
from trainer.config.schema import LoraConfig

A, B = "lora_a", "lora_b"
Product = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""A function of inputs x, A and B that returns x A^T B^T."""


class LoraLinear(nn.Linear):
    """A linear layer whose weight W is frozen, with a trained change: y = x (W + alpha / rank x B A)^T."""

    def __init__(self, linear: nn.Linear, config: LoraConfig) -> None:
        super().__init__(linear.in_features, linear.out_features, bias=linear.bias is not None, device="meta")
        # The same parameters, so the names in checkpoints stay.
        self.weight, self.bias = linear.weight, linear.bias
        options: dict[str, Any] = {"device": linear.weight.device, "dtype": linear.weight.dtype}
        self.lora_a = nn.Parameter(torch.empty(config.rank, linear.in_features, **options))
        self.lora_b = nn.Parameter(torch.empty(linear.out_features, config.rank, **options))
        self.scale = config.alpha / config.rank
        self.multiply: Product = multiply
        """Replaced by tensor parallelism."""
        for name in (A, B):
            parameter = getattr(self, name)
            nn.init.normal_(parameter, *initial(name, tuple(parameter.shape)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.weight, self.bias) + self.multiply(x, self.lora_a, self.lora_b) * self.scale


def multiply(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return x A^T B^T, without the large product B A."""
    return F.linear(F.linear(x, a), b)


def add_lora(model: nn.Module, config: LoraConfig) -> nn.Module:
    """Freeze the model and replace the chosen linear layers, in place; raise ConfigError if a pattern fits none."""
    linears = {name: part for name, part in model.named_modules() if isinstance(part, nn.Linear)}
    chosen = {pattern: [name for name in linears if _matches(name, pattern)] for pattern in config.layers}
    unused = [pattern for pattern, names in chosen.items() if not names]
    if unused:
        options = ", ".join(dict.fromkeys(_shorten(name) for name in linears)) or "none"
        problems = [
            ConfigProblem("lora.layers", f"{pattern} fits no linear layer", f"use: {options}") for pattern in unused
        ]
        raise ConfigError(problems)
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    counts = _count_uses(model)
    for name in dict.fromkeys(name for names in chosen.values() for name in names):
        if counts[id(linears[name].weight)] > 1:
            message = f"{name} shares its weight with another layer, which would change too"
            raise ConfigError([ConfigProblem("lora.layers", message, "choose other layers, or untie the weight")])
        parent, _, last = name.rpartition(".")
        setattr(model.get_submodule(parent), last, LoraLinear(linears[name], config))
    return model


def is_adapter(name: str) -> bool:
    """Return whether a parameter of that name was added by LoRA."""
    return name.endswith((f".{A}", f".{B}"))


def initial(name: str, shape: tuple[int, ...]) -> tuple[float, float]:
    """Return the mean and standard deviation of a new parameter: B starts at zero, so nothing changes at first."""
    return (0.0, shape[1] ** -0.5) if name.endswith(A) else (0.0, 0.0)


def merge(state: Mapping[str, torch.Tensor], config: LoraConfig) -> dict[str, torch.Tensor]:
    """Return the weights of the plain model: each chosen weight plus its change."""
    merged = {name: value for name, value in state.items() if not is_adapter(name)}
    for name, value in state.items():
        if name.endswith(f".{A}"):
            layer = name.removesuffix(f".{A}")
            weight = state[f"{layer}.weight"]
            change = state[f"{layer}.{B}"].float() @ value.float() * (config.alpha / config.rank)
            merged[f"{layer}.weight"] = (weight.float() + change).to(weight.dtype)
    return merged


def _matches(name: str, pattern: str) -> bool:
    return fnmatchcase(name, pattern) or fnmatchcase(name, f"*.{pattern}")


def _shorten(name: str) -> str:
    """Return the last two parts of a layer's name, which are the same in every block."""
    return ".".join(name.split(".")[-2:])


def _count_uses(model: nn.Module) -> dict[int, int]:
    counts: dict[int, int] = {}
    for _, parameter in model.named_parameters(remove_duplicate=False):
        counts[id(parameter)] = counts.get(id(parameter), 0) + 1
    return counts
