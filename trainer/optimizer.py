"""AdamW and SGD with torch's fused kernels, on each rank's own part of the parameters."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from trainer.config.schema import OptimizerConfig
from trainer.parallel.gradients import to_local


class Optimizer:
    """AdamW or SGD on plain local tensors: updates are elementwise, so DTensor dispatch would only cost time.

    torch's fused kernels scale gradients and skip the update on the device. torch.optim, which wraps them, would import
    torch._dynamo, and that takes as long as importing torch itself.
    """

    def __init__(self, parameters: Iterable[tuple[str, torch.Tensor]], config: OptimizerConfig) -> None:
        self._config = config
        self._keys = _list_state_keys(config)
        self._entries = [_make_entry(name, value, self._keys) for name, value in parameters]
        devices = {to_local(entry.parameter).device for entry in self._entries}
        self._updates = {device: torch.zeros((), device=device) for device in devices}

    def gradients(self) -> list[torch.Tensor]:
        """Return the gradients of all parameters that have one."""
        return [entry.gradient for entry in self._entries if entry.gradient is not None]

    @torch.no_grad()
    def step(self, rate: float, divide: torch.Tensor | None, skip: torch.Tensor | None) -> None:
        """Update with gradients divided by `divide`; change nothing if `skip` is 1."""
        for device, updates in self._updates.items():
            divide_here = None if divide is None else divide.to(device)
            skip_here = None if skip is None else skip.to(device)
            updates.add_(1.0 if skip_here is None else 1.0 - skip_here)
            for is_decayed in (True, False):
                entries = [e for e in self._entries if e.is_decayed == is_decayed and e.is_on(device)]
                if entries:
                    self._update(entries, updates, rate, divide_here, skip_here)

    def zero_gradients(self) -> None:
        """Free all gradients."""
        for entry in self._entries:
            entry.parameter.grad = None

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return the state by name: "<parameter>.<key>", sharded like the parameter, and "updates", a count."""
        tensors = {f"{e.name}.{key}": value for e in self._entries for key, value in e.state.items()}
        tensors["updates"] = next(iter(self._updates.values()))
        return tensors

    def _update(
        self,
        entries: list[_Entry],
        updates: torch.Tensor,
        rate: float,
        divide: torch.Tensor | None,
        skip: torch.Tensor | None,
    ) -> None:
        config = self._config
        values = [to_local(e.parameter) for e in entries]
        gradients = [to_local(e.gradient) for e in entries]
        states = {key: [to_local(e.state[key]) for e in entries] for key in self._keys}
        common: dict[str, Any] = {
            "lr": rate,
            "weight_decay": config.weight_decay if entries[0].is_decayed else 0.0,
            "maximize": False,
            "grad_scale": divide,
            "found_inf": skip,
        }
        if config.name == "sgd":
            torch._fused_sgd_(
                values,
                gradients,
                states.get("momentum", []),
                momentum=config.momentum,
                dampening=0.0,
                nesterov=False,
                is_first_step=False,
                **common,
            )
            return
        torch._fused_adamw_(
            values,
            gradients,
            states["first"],
            states["second"],
            [],
            [updates] * len(values),
            beta1=config.beta1,
            beta2=config.beta2,
            eps=config.eps,
            amsgrad=False,
            **common,
        )


@dataclass
class _Entry:
    """A parameter and its optimizer state."""

    name: str
    parameter: torch.Tensor
    state: dict[str, torch.Tensor]
    is_decayed: bool

    @property
    def gradient(self) -> Any:
        return self.parameter.grad

    def is_on(self, device: torch.device) -> bool:
        """Return whether this entry has values to update on this device; a rank may hold no row of a parameter."""
        return self.gradient is not None and self.parameter.device == device and to_local(self.parameter).numel() > 0


def _make_entry(name: str, parameter: torch.Tensor, keys: tuple[str, ...]) -> _Entry:
    state = {key: torch.zeros_like(parameter, requires_grad=False) for key in keys}
    return _Entry(name, parameter, state, is_decayed=parameter.ndim > 1)


def _list_state_keys(config: OptimizerConfig) -> tuple[str, ...]:
    if config.name == "adamw":
        return ("first", "second")
    return ("momentum",) if config.momentum else ()
