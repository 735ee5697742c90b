"""Measure the sizes of a model, without allocating it, and the memory that is free on the ranks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.overrides import TorchFunctionMode

from trainer import host
from trainer.auto.sizes import (
    ModelSizes,
    count_copied_keys_values,
    count_document_angles,
    count_keys_values,
    count_masked_pairs,
    count_outputs_at_once,
)
from trainer.config.layout import Layout
from trainer.config.models import DecoderConfig, MoeConfig
from trainer.config.schema import Config
from trainer.models.experts import ExpertLinear
from trainer.models.head import takes_objective
from trainer.models.registry import build_network
from trainer.optimizers.sizes import count_state_bytes, count_update_bytes
from trainer.parallel.document_kernel import explain_mask
from trainer.parallel.modules import list_embeddings
from trainer.parallel.units import find_units
from trainer.state_formats import FORMAT_BYTES
from trainer.world import World


def find_least_free_memory(world: World) -> int:
    """Return the free memory of the rank that has the least, in bytes; every rank gets the same number."""
    free = torch.tensor(count_free_bytes(world), dtype=torch.int64)
    if world.group is not None:
        dist.all_reduce(free, dist.ReduceOp.MIN, group=world.group)
    return int(free)


def count_free_bytes(world: World) -> int:
    """Return the free bytes of this rank's GPU or, on a CPU, its share of the memory that Slurm lets the job use."""
    if world.device.type == "cuda":
        return int(torch.cuda.mem_get_info(world.device)[0])
    return host.available_memory() // world.local_size


def measure_sizes(config: Config, batch: dict[str, torch.Tensor], device_type: str) -> ModelSizes:
    """Count the bytes stored for the backward pass, by a forward pass on tensors that occupy no memory.

    `batch` is a few samples of the run's data; only their shapes and types are used. The forward pass runs once with
    this batch and once with twice the samples. What grows between the two is an activation; weights cast to two
    bytes, for example, do not grow.
    """
    inputs = batch["inputs"]
    samples = len(inputs)
    with _without_memory(config, device_type), _autocast(config, device_type):
        model = build_network(config)
        # A model that cannot be divided is one block.
        blocks = [unit.module for unit in find_units(model).layers] or [model]
        few, twice = (
            _run_forward(model, blocks, torch.empty(times * samples, *inputs.shape[1:], dtype=inputs.dtype))
            for times in (1, 2)
        )
    trained = [(name, value) for name, value in model.named_parameters() if value.requires_grad]
    shapes = [(name, tuple(value.shape)) for name, value in trained]
    embeddings = list_embeddings([model])
    parameters = _count_weights(model)
    largest = max((_count_weights(block) for block in blocks), default=parameters)
    return ModelSizes(
        parameters=parameters,
        trainable=sum(value.numel() for _, value in trained),
        largest_block=largest,
        states=count_state_bytes(shapes, config.optimizer, embeddings),
        update=count_update_bytes(shapes, config.optimizer, embeddings),
        blocks=len(blocks),
        activations=(twice.stored - few.stored) // samples,
        block_input=few.inputs // (samples * max(len(blocks), 1)),
        block_products=few.products // (samples * max(len(blocks), 1)),
        outputs=few.outputs * FORMAT_BYTES["fp32"] // samples,
        keys_values=count_keys_values(config),
        experts=sum(_count_weights(part) for part in model.modules() if isinstance(part, ExpertLinear)),
        outputs_at_once=count_outputs_at_once(config) if takes_objective(model) else 0,
        head=_count_trained_head(model),
        # The forward pass above has no documents, so these are not among its activations.
        copied_keys_values=count_copied_keys_values(config),
        document_angles=count_document_angles(config),
        masked_pairs=count_masked_pairs(config) if _uses_mask(config, device_type) else 0,
        block_last_product=_count_last_product(config, few) // (samples * max(len(blocks), 1)),
    )


def _count_last_product(config: Config, counts: _Counts) -> int:
    """Return the bytes of the products with which a decoder's blocks end.

    The output of an expert is multiplied by its share before it is added, so the backward pass needs it.
    """
    ends_with_a_sum = isinstance(config.model, DecoderConfig) and not isinstance(config.model, MoeConfig)
    return counts.last_products if ends_with_a_sum else 0


def _count_trained_head(model: nn.Module) -> int:
    """Return the parameters of a head whose gradient is computed along with the loss."""
    if not takes_objective(model):
        return 0
    weight = model.get_parameter("head.weight")
    return weight.numel() if weight.requires_grad else 0


def _count_weights(module: nn.Module) -> int:
    return sum(weight.numel() for weight in module.parameters())


def _uses_mask(config: Config, device_type: str) -> bool:
    """Return whether documents are separated by a mask; flex_attention needs none."""
    layout = Layout(context=config.parallel.context)
    return not isinstance(config.model, DecoderConfig) or bool(
        explain_mask(config.model, torch.device(device_type), layout)
    )


def _run_forward(model: nn.Module, blocks: list[nn.Module], inputs: torch.Tensor) -> _Counts:
    counts = _Counts(model)
    hooks = [block.register_forward_pre_hook(counts.add_input) for block in blocks]
    kinds = (nn.Linear, nn.Conv2d, ExpertLinear)
    layers = [layer for block in blocks for layer in block.modules() if isinstance(layer, kinds)]
    hooks += [layer.register_forward_hook(counts.add_product) for layer in layers]
    hooks += [block.register_forward_hook(counts.add_last_product) for block in blocks]
    with torch.autograd.graph.saved_tensors_hooks(counts.add_stored, lambda tensor: tensor), _FusedAttention():
        counts.outputs = model(inputs).numel()
    for hook in hooks:
        hook.remove()
    return counts


class _Counts:
    """Bytes stored for the backward pass (each storage once, no weights) and of the blocks' inputs and products."""

    def __init__(self, model: nn.Module) -> None:
        self.stored = self.inputs = self.products = self.last_products = self.outputs = 0
        self._last_product = 0
        self._seen = {p.untyped_storage()._cdata for p in model.parameters()}
        self._references: list[torch.Tensor] = []

    def add_stored(self, tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in self._seen:
            self._seen.add(storage._cdata)
            # Without a reference the storage could be freed, and the next one could get its address.
            self._references.append(tensor)
            self.stored += storage.nbytes()
        return tensor

    def add_input(self, _: nn.Module, args: tuple[torch.Tensor, ...]) -> None:
        self.inputs += args[0].nbytes

    def add_product(self, _: nn.Module, args: object, output: torch.Tensor) -> None:
        del args
        self.products += output.nbytes
        self._last_product = output.nbytes

    def add_last_product(self, _: nn.Module, args: object, output: torch.Tensor) -> None:
        del args, output
        self.last_products += self._last_product


class _FusedAttention(TorchFunctionMode):
    """Replace attention on meta tensors, for which torch stores all scores, by a stand-in that stores none."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        options = kwargs or {}
        if func is F.scaled_dot_product_attention and args[0].is_meta and not options.get("dropout_p"):
            return _FusedAttentionStorage.apply(*args)
        return func(*args, **options)


class _FusedAttentionStorage(torch.autograd.Function):
    """A stand-in that stores the same tensors as fused attention and computes nothing."""

    @staticmethod
    def forward(ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(q)
        ctx.save_for_backward(q, k, v, out, q.new_empty(q.shape[:-1]))
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        raise NotImplementedError


@contextmanager
def _without_memory(config: Config, device_type: str) -> Iterator[None]:
    """Create all tensors with shapes and types but without memory."""
    if config.precision == "fp32":
        with torch.device("meta"):
            yield
        return
    # Autocast needs fake tensors, which take a second to import.
    from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: PLC0415

    with FakeTensorMode(), torch.device(device_type):
        yield


def _autocast(config: Config, device_type: str) -> torch.autocast:
    dtype = torch.float16 if config.precision == "fp16" else torch.bfloat16
    return torch.autocast(device_type, dtype=dtype, enabled=config.precision != "fp32")
