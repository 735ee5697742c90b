"""The optimizer of a rank: it keeps the state of the rank's parameters and updates them group by group."""

from __future__ import annotations

from collections.abc import Container, Iterable
from fnmatch import fnmatchcase
from typing import Any, Protocol

import torch

from trainer.config.errors import ConfigError, ConfigProblem
from trainer.config.schema import OptimizerConfig
from trainer.optimizers.adamw import AdamW
from trainer.optimizers.chunks import Update
from trainer.optimizers.groups import DecayPattern, Group, RuleName, choose_group, list_moments, parse_decay_groups
from trainer.optimizers.moments import make_master, make_moment
from trainer.optimizers.muon import Muon
from trainer.optimizers.sgd import Sgd
from trainer.optimizers.slot import Slot
from trainer.parallel.gradients import to_local
from trainer.parallel.mesh import Mesh
from trainer.state_formats import choose_moment_format

MASTER = "master"
"""Name of the fp32 copy of a parameter among its state."""
_MAX_NAMED = 3


class Rule(Protocol):
    """How parameters and their moments change, given gradients."""

    signed_moments: tuple[str, ...]
    """Names of the moments that can be negative."""

    def update(self, slots: list[Slot], decay: float, update: Update) -> None:
        """Update parameters that are on one device and have gradients."""


class Optimizer:
    """The update of all trainable parameters of a rank, on plain local tensors: DTensor dispatch would only cost time.

    torch's fused kernels scale gradients and skip the update on the device. torch.optim, which wraps them, would import
    torch._dynamo, and that takes as long as importing torch itself.
    """

    def __init__(
        self,
        parameters: Iterable[tuple[str, torch.Tensor]],
        config: OptimizerConfig,
        mesh: Mesh | None = None,
        embeddings: Container[str] = (),
    ) -> None:
        """Create the state of zeros; `embeddings` names the parameters that are lookup tables."""
        trainable = [(name, value) for name, value in parameters if value.requires_grad]
        self._rules = _make_rules(config, mesh)
        self._groups: dict[Group, list[Slot]] = {}
        for name, value in trainable:
            group = choose_group(name, value.shape, config, is_embedding=name in embeddings)
            self._groups.setdefault(group, []).append(_make_slot(name, value, group.rule, self._rules, config))
        _check_groups([name for name, _ in trainable], self._groups, config, mesh)
        self._slots = [slot for slots in self._groups.values() for slot in slots]
        devices = {to_local(slot.parameter).device for slot in self._slots} or {torch.device("cpu")}
        self._counts = {device: torch.zeros((), device=device) for device in devices}

    def gradients(self) -> list[torch.Tensor]:
        """Return the gradients of all parameters that have one."""
        return [slot.parameter.grad for slot in self._slots if slot.parameter.grad is not None]

    @torch.no_grad()
    def step(self, rate: float, divide: torch.Tensor | None, skip: torch.Tensor | None, seed: int = 0) -> None:
        """Update with gradients divided by `divide`; change nothing if `skip` is 1.

        `seed` decides how bf16 weights and bf16 and int8 moments are rounded; it should be another one in every step.
        """
        for device, count in self._counts.items():
            divide_here = None if divide is None else divide.to(device)
            skip_here = None if skip is None else skip.to(device)
            count.add_(1.0 if skip_here is None else 1.0 - skip_here)
            update = Update(rate, divide_here, skip_here, count, seed)
            for group, slots in self._groups.items():
                ready = [s for s in slots if s.parameter.grad is not None and s.parameter.device == device]
                if ready:
                    self._rules[group.rule].update(ready, group.decay, update)

    def zero_gradients(self) -> None:
        """Free all gradients."""
        for slot in self._slots:
            slot.parameter.grad = None

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return the state by name: "<parameter>.<moment>", sharded like the parameter, and "updates", a count.

        "<parameter>.master" is the fp32 copy of a bf16 parameter.
        """
        tensors: dict[str, torch.Tensor] = {}
        for slot in self._slots:
            for key, moment in slot.moments.items():
                tensors |= moment.tensors(f"{slot.name}.{key}")
            if slot.master is not None:
                tensors[f"{slot.name}.{MASTER}"] = slot.master
        tensors["updates"] = next(iter(self._counts.values()))
        return tensors

    @torch.no_grad()
    def round_master_weights(self) -> None:
        """Set bf16 parameters to their fp32 copies; call it after the copies were loaded."""
        for slot in self._slots:
            if slot.master is not None:
                to_local(slot.parameter).copy_(to_local(slot.master))

    def describe_groups(self) -> list[str]:
        """Return a line that says which rule updates which parameters, if there are two."""
        names: dict[RuleName, list[str]] = {}
        for group, slots in self._groups.items():
            names.setdefault(group.rule, []).extend(slot.name for slot in slots)
        if len(names) == 1:
            return []
        return ["optimizer: " + "; ".join(f"{rule} for {_list_some(each)}" for rule, each in names.items())]


def _make_rules(config: OptimizerConfig, mesh: Mesh | None) -> dict[RuleName, Rule]:
    if config.name == "sgd":
        return {"sgd": Sgd(config)}
    rules: dict[RuleName, Rule] = {"adamw": AdamW(config)}
    if config.name == "muon":
        rules["muon"] = Muon(config, mesh)
    return rules


def _make_slot(
    name: str, parameter: torch.Tensor, rule: RuleName, rules: dict[RuleName, Any], config: OptimizerConfig
) -> Slot:
    signed = rules[rule].signed_moments
    keys = list_moments(rule, config)
    _check_rows(name, parameter, config)
    moments = {key: make_moment(parameter, config.moments, is_signed=key in signed) for key in keys}
    has_master = config.master and parameter.dtype != torch.float32
    return Slot(name, parameter, moments, make_master(parameter) if has_master else None)


def _check_rows(name: str, parameter: Any, config: OptimizerConfig) -> None:
    """Check that no rank has a part of a row whose moments are stored in blocks."""
    is_split = any(place.is_shard() and place.dim > 0 for place in getattr(parameter, "placements", ()))
    if is_split and choose_moment_format(config.moments, parameter.shape) == "int8":
        message = f"int8 stores blocks of a row, but ranks share the rows of {name}"
        fix = "use bf16 or fp32, or set parallel.strategy to ddp and parallel.tensor to 1"
        raise ConfigError([ConfigProblem("optimizer.moments", message, fix)])


def _check_groups(
    names: list[str], groups: dict[Group, list[Slot]], config: OptimizerConfig, mesh: Mesh | None
) -> None:
    """Check that every decay pattern, and Muon, has parameters; a pipeline stage alone may have none."""
    patterns = [entry.pattern for entry in parse_decay_groups(config) if isinstance(entry, DecayPattern)]
    counts = [sum(fnmatchcase(name, pattern) for name in names) for pattern in patterns]
    counts.append(sum(len(slots) for group, slots in groups.items() if group.rule == "muon"))
    if mesh is not None and mesh.group("pipeline") is not None:
        counts = mesh.sum_over(torch.tensor(counts, device=mesh.device), "pipeline").tolist()
    some = _list_some(names)
    problems = [
        ConfigProblem("optimizer.decay_groups", f"{pattern!r} matches no parameter", f"parameters are {some}")
        for pattern, count in zip(patterns, counts, strict=False)
        if not count
    ]
    if config.name == "muon" and not counts[-1]:
        message = f"muon, but no parameter is a matrix outside embeddings and {', '.join(config.muon_exclude)}"
        problems.append(ConfigProblem("optimizer.name", message, "use adamw, or change optimizer.muon_exclude"))
    if problems:
        raise ConfigError(problems)


def _list_some(names: list[str]) -> str:
    more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
    return ", ".join(names[:_MAX_NAMED]) + more
