"""Number formats of matrix products, and the loss scale that keeps fp16 gradients from underflowing."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from trainer.config.errors import ConfigError, ConfigProblem
from trainer.config.schema import Precision, StoredFormat

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}

_FIRST_SCALE = 2.0**16
_GROW_AFTER_STEPS = 2000

# Weights in these formats are stored as fp32. Others are refused: fp64 would lose digits, and fp8 needs scales.
_HALF = (torch.float16, torch.bfloat16)


def store_as_fp32(model: nn.Module) -> list[str]:
    """Convert half-precision weights and buffers of a given model to fp32, in place; return a line for the log.

    Updates of a bf16 weight that are smaller than 1/256 of it would be lost. Tied weights stay tied.
    """
    tensors = [*model.named_parameters(), *model.named_buffers()]
    problem = next((_describe_dtype(name, value) for name, value in tensors if not _can_store(value)), None)
    if problem:
        raise ConfigError([problem])
    halves = {str(value.dtype).removeprefix("torch.") for _, value in tensors if value.dtype in _HALF}
    if not halves:
        return []
    model._apply(lambda value: value.float() if value.dtype in _HALF else value)
    names = " and ".join(sorted(halves))
    return [f"weights: stored as fp32, the model has {names}; `precision` is the format of its matrix products"]


def cast_weights(model: nn.Module, stored: StoredFormat) -> None:
    """Store the weights of a model in this format, in place; buffers keep theirs, and tied weights stay tied."""
    if stored == "fp32":
        return
    for weight in model.parameters():
        if weight.is_floating_point():
            weight.data = weight.data.to(DTYPES[stored])


def autocast_forward(model: nn.Module, precision: Precision, device: torch.device) -> None:
    """Run the model's forward in the given format; weights and their gradients keep theirs.

    Only the forward is cast: autograd uses the same formats in the backward pass, and the loss is computed in fp32.
    """
    if precision == "fp32":
        return
    forward = model.forward

    def cast_forward(*args: Any, **kwargs: Any) -> Any:
        with torch.autocast(device.type, DTYPES[precision]):
            return forward(*args, **kwargs)

    model.forward = cast_forward


class LossScale:
    """Dynamic loss scaling on the device, so that no step waits to learn whether it overflowed.

    torch's GradScaler reads found_inf on the host and does not support pipeline stages. Here an overflow is detected
    from the global gradient norm, which is the same on all ranks.
    """

    def __init__(self, device: torch.device, first: float = _FIRST_SCALE, grow_after: int = _GROW_AFTER_STEPS) -> None:
        self.scale = torch.full((), first, device=device)
        self.good_steps = torch.zeros((), device=device)
        self._grow_after = grow_after

    def update(self, overflowed: torch.Tensor) -> None:
        """Halve the scale after an overflow, and double it after many steps without one."""
        good = torch.where(overflowed, 0.0, self.good_steps + 1)
        grows = good >= self._grow_after
        factor = torch.where(overflowed, 0.5, torch.where(grows, 2.0, 1.0))
        # Below 1 the scale cannot help: the gradients themselves overflow.
        self.scale.mul_(factor).clamp_(min=1.0)
        self.good_steps.copy_(torch.where(grows, 0.0, good))

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return the state that belongs in a checkpoint."""
        return {"scale": self.scale, "good_steps": self.good_steps}


def _can_store(value: torch.Tensor) -> bool:
    is_trained = isinstance(value, nn.Parameter) and (value.is_floating_point() or value.is_complex())
    return not value.is_meta and (not is_trained or value.dtype in (torch.float32, *_HALF))


def _describe_dtype(name: str, value: torch.Tensor) -> ConfigProblem:
    if value.is_meta:
        return ConfigProblem("model", f"{name} has no values (device meta)", "load the weights first")
    dtype = str(value.dtype).removeprefix("torch.")
    fix = "weights are stored as float32: pass model.float(), or register values that are not trained as buffers"
    return ConfigProblem("model", f"{name} is {dtype}; the allowed types are float32, bfloat16 and float16", fix)
