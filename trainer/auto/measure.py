"""What a model weighs, read off the model: one pass over tensors without memory that counts what backward keeps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import TorchFunctionMode

from trainer.auto.memory import WEIGHT, Sizes
from trainer.config.schema import Config
from trainer.models.registry import build_model


def sizes(config: Config, batch: dict[str, torch.Tensor], device_type: str) -> Sizes:
    """`batch` is a few samples of the run's data; only its shapes and types are used.

    Once with these and once with twice as many: what stays the same, such as weights in two bytes, is no activation.
    """
    like = batch["inputs"]
    samples = len(like)
    with _weightless(config, device_type), _autocast(config, device_type):
        model = build_model(config.model)
        blocks = list(_blocks(model))
        few, more = (
            _forward(model, blocks, torch.empty(times * samples, *like.shape[1:], dtype=like.dtype)) for times in (1, 2)
        )
    parameters = sum(p.numel() for p in model.parameters())
    largest = max((sum(p.numel() for p in block.parameters()) for block in blocks), default=parameters)
    return Sizes(
        parameters=parameters,
        largest_block=largest,
        states=2 if config.optimizer.name == "adamw" else int(config.optimizer.momentum > 0),
        blocks=len(blocks),
        activations=(more.kept - few.kept) // samples,
        block_input=few.inputs // (samples * max(len(blocks), 1)),
        block_products=few.products // (samples * max(len(blocks), 1)),
        outputs=few.outputs * WEIGHT // samples,
    )


def _forward(model: nn.Module, blocks: list[nn.Module], inputs: torch.Tensor) -> _Counts:
    counts = _Counts(model)
    hooks = [block.register_forward_pre_hook(counts.see_input) for block in blocks]
    products = [part for block in blocks for part in block.modules() if isinstance(part, nn.Linear | nn.Conv2d)]
    hooks += [part.register_forward_hook(counts.see_product) for part in products]
    kept = torch.autograd.graph.saved_tensors_hooks(counts.keep, counts.give)
    with kept, _FusedAttention():
        counts.outputs = model(inputs).numel()
    for hook in hooks:
        hook.remove()
    return counts


class _Counts:
    """Bytes that backward keeps (each storage once, weights not) and bytes that blocks take in and multiply out."""

    def __init__(self, model: nn.Module) -> None:
        self.kept = self.inputs = self.products = self.outputs = 0
        self._seen = {p.untyped_storage()._cdata for p in model.parameters()}
        self._alive: list[torch.Tensor] = []

    def keep(self, tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in self._seen:
            self._seen.add(storage._cdata)
            # A storage that is freed could give its address to the next one.
            self._alive.append(tensor)
            self.kept += storage.nbytes()
        return tensor

    def give(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor

    def see_input(self, _: nn.Module, args: tuple[torch.Tensor, ...]) -> None:
        self.inputs += args[0].nbytes

    def see_product(self, _: nn.Module, args: object, output: torch.Tensor) -> None:
        del args
        self.products += output.nbytes


class _FusedAttention(TorchFunctionMode):
    """Without a device torch takes the attention that keeps every score; devices have one that keeps none of them."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        options = kwargs or {}
        if func is F.scaled_dot_product_attention and args[0].is_meta and not options.get("dropout_p"):
            return _Attention.apply(*args)
        return func(*args, **options)


class _Attention(torch.autograd.Function):
    """What such an attention keeps, and nothing else of it."""

    @staticmethod
    def forward(ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(q)
        ctx.save_for_backward(q, k, v, out, q.new_empty(q.shape[:-1]))
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        raise NotImplementedError


def _blocks(model: nn.Module) -> Iterable[nn.Module]:
    """The parts that parallelism wraps one by one; a model without `layers` is one block."""
    layers = getattr(model, "layers", None)
    return layers.values() if isinstance(layers, nn.ModuleDict) else [model]


@contextmanager
def _weightless(config: Config, device_type: str) -> Iterator[None]:
    """Tensors without memory. Those that autocast knows how to cast take a second to import."""
    if config.precision == "fp32":
        with torch.device("meta"):
            yield
        return
    from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: PLC0415

    with FakeTensorMode(), torch.device(device_type):
        yield


def _autocast(config: Config, device_type: str) -> torch.autocast:
    dtype = torch.float16 if config.precision == "fp16" else torch.bfloat16
    return torch.autocast(device_type, dtype=dtype, enabled=config.precision != "fp32")
