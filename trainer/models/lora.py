"""LoRA: train a low-rank change of chosen linear layers while all other weights stay frozen.

See https://arxiv.org/abs/2106.09685.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import nn

from trainer.config.errors import ConfigError, ConfigProblem
from trainer.config.schema import LoraConfig
from trainer.models.experts import ExpertLinear, Groups, multiply_groups
from trainer.models.head import Head, Objective
from trainer.parallel.local_part import take_local_part

A, B = "lora_a", "lora_b"
Product = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""A function of inputs x, A and B that returns x A^T B^T."""


class LoraLinear(nn.Linear):
    """A linear layer whose weight W is frozen, with a trained change: y = x (W + alpha / rank x B A)^T."""

    def __init__(self, linear: nn.Linear, config: LoraConfig) -> None:
        # Not super(), because the class before this one may be a head, which has other arguments.
        nn.Linear.__init__(self, linear.in_features, linear.out_features, bias=linear.bias is not None, device="meta")
        # The same parameters, so the names in checkpoints stay.
        self.weight, self.bias = linear.weight, linear.bias
        self.lora_a, self.lora_b = _make_matrices(linear.weight, config.rank)
        self.scale = config.alpha / config.rank
        self.multiply: Product = multiply
        """Replaced by tensor parallelism."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.weight, self.bias) + self.multiply(x, self.lora_a, self.lora_b) * self.scale


class LoraHead(LoraLinear, Head):
    """The head of a language model, whose weight is frozen, with a trained change."""

    def forward(
        self, hidden: torch.Tensor, objective: Objective | None = None, targets: torch.Tensor | None = None
    ) -> torch.Tensor:
        return Head.forward(self, hidden, objective, targets)

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return LoraLinear.forward(self, hidden)

    def factor_change(self, states: torch.Tensor) -> list[torch.Tensor]:
        return [F.linear(states, take_local_part(self.lora_a)) * self.scale, take_local_part(self.lora_b)]


class LoraExpertLinear(ExpertLinear):
    """The linear layers of all experts, whose weights are frozen, with a trained change of each of them."""

    wide_dims: ClassVar[dict[str, int]] = {"weight": 1, A: 2, B: 1}

    def __init__(self, linear: ExpertLinear, config: LoraConfig) -> None:
        experts, outputs, inputs = linear.weight.shape
        with torch.device("meta"):
            super().__init__(experts, inputs, outputs)
        self.weight = linear.weight
        self.widths = (*linear.widths, config.rank)
        self.lora_a, self.lora_b = _make_matrices(linear.weight, config.rank)
        self.scale = config.alpha / config.rank

    def forward(self, rows: torch.Tensor, groups: Groups) -> torch.Tensor:
        change = multiply_groups(multiply_groups(rows, self.lora_a, groups), self.lora_b, groups)
        return super().forward(rows, groups) + change * self.scale


def multiply(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return x A^T B^T, without the large product B A."""
    return F.linear(F.linear(x, a), b)


def add_lora(model: nn.Module, config: LoraConfig) -> nn.Module:
    """Freeze the model and replace the chosen linear layers, in place; raise ConfigError if a pattern fits none."""
    linears = {name: part for name, part in model.named_modules() if isinstance(part, nn.Linear | ExpertLinear)}
    chosen = {pattern: [name for name in linears if _matches(name, pattern)] for pattern in config.layers}
    unused = [pattern for pattern, names in chosen.items() if not names]
    if unused:
        options = ", ".join(dict.fromkeys(_shorten(name) for name in linears)) or "none"
        problems = [
            ConfigProblem("lora.layers", f"{pattern} fits no linear layer", f"use: {options}") for pattern in unused
        ]
        raise ConfigError(problems)
    _check_rank(config.rank, {name: linears[name] for names in chosen.values() for name in names})
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    counts = _count_uses(model)
    for name in dict.fromkeys(name for names in chosen.values() for name in names):
        if counts[id(linears[name].weight)] > 1:
            message = f"{name} shares its weight with another layer, which would change too"
            raise ConfigError([ConfigProblem("lora.layers", message, "choose other layers, or untie the weight")])
        parent, _, last = name.rpartition(".")
        setattr(model.get_submodule(parent), last, _add_change(linears[name], config))
    return model


def is_adapter(name: str) -> bool:
    """Return whether a parameter of that name was added by LoRA."""
    return name.endswith((f".{A}", f".{B}"))


def initial(name: str, shape: tuple[int, ...]) -> tuple[float, float]:
    """Return the mean and standard deviation of a new parameter: B starts at zero, so nothing changes at first."""
    return (0.0, shape[-1] ** -0.5) if name.endswith(A) else (0.0, 0.0)


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


def _check_rank(rank: int, chosen: Mapping[str, nn.Linear | ExpertLinear]) -> None:
    """Check that the change of at least one layer can have this rank: more would only take memory and time."""
    sides = {name: tuple(linear.weight.shape[-2:]) for name, linear in chosen.items()}
    name = max(sides, key=lambda layer: min(sides[layer]))
    limit = min(sides[name])
    if rank > limit:
        message = f"{rank}, but the chosen layers are smaller: {name} is {sides[name][0]} x {sides[name][1]}"
        raise ConfigError([ConfigProblem("lora.rank", message, f"use at most {limit}")])


def _add_change(linear: nn.Linear | ExpertLinear, config: LoraConfig) -> nn.Module:
    if isinstance(linear, Head):
        return LoraHead(linear, config)
    return LoraLinear(linear, config) if isinstance(linear, nn.Linear) else LoraExpertLinear(linear, config)


def _make_matrices(weight: torch.Tensor, rank: int) -> tuple[nn.Parameter, nn.Parameter]:
    """Return A and B for a weight, or for the weights of all experts."""
    *experts, outputs, inputs = weight.shape
    matrices = []
    for name, shape in ((A, (*experts, rank, inputs)), (B, (*experts, outputs, rank))):
        matrix = torch.empty(shape, device=weight.device, dtype=weight.dtype)
        matrices.append(nn.Parameter(nn.init.normal_(matrix, *initial(name, shape))))
    return matrices[0], matrices[1]


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
