"""Sharded data parallelism (ZeRO, FSDP): ranks share the parameters, and gather those of a layer while it runs.

Every rank runs its share of the batch, as in data parallelism, but it stores only a part of the state. With N ranks,
rank r has the r-th of N equal ranges of rows of each parameter, of its gradient, and of the optimizer's moments. An
update treats each value on its own, so the optimizer works on the rows of its rank as if they were the whole.

1. The parameters of a layer, and of what surrounds the layers, are a block (`Block`): one flat tensor of this rank's
   rows. The parameters that the trainer sees are DTensors, views of it. So clipping, initial values, the optimizer and
   checkpoints need not know about blocks, and all rows of a block travel in one message.
2. Before a block runs, an all-gather collects its rows from all ranks, in the format of the products: weights stay in
   fp32, but bf16 copies of them are sent. The next block is already on its way then (`parallel.prefetch`). After it has
   run, the whole parameters are freed.
3. The backward pass visits the blocks in reverse, gathers them again, and frees them again once the gradient of their
   input is computed. The last block is still whole, as it is the first one here.
4. Autograd calls a hook when it has the gradient of a whole parameter (`BlockGradients`). The gradient of the block's
   input comes after all of them. Then they are copied to one flat tensor, and a reduce-scatter starts: rank r
   receives the average of its own rows, while the backward pass continues. With a replicate axis (hsdp), an all-reduce
   of these rows over the replicas follows, as soon as the next block is ready to send. At most one block is sent while
   the next one is filled, which limits the memory.
5. After the backward pass, the engine waits. The gradients of the DTensors are averages.

With `parallel.offload`, rows, their gradients and moments are in the host's memory, and the optimizer runs there. Rows
are copied to the device when their block is gathered, and averages of gradients to the host.

That is ZeRO 3. Under ZeRO 2, parameters stay whole from their first use in a step to their last, which saves the second
all-gather. Under ZeRO 1, gradients stay whole too until the last micro-batch, which saves reduce-scatters.

A weight that a rank's loss does not depend on has a gradient of zeros. Ranks may differ in such weights, because their
gradients start no collective. But all ranks must run the same blocks in the same order, because their collectives meet
in the order in which they are started. Ranks compare that in the first step, or in all of them (`BlockOrder`).

Gradients lie as they do in torch's fully_shard, so the backend sums them in the same order, and both engines have the
same bits. That order depends on the ranks and on the place of a value only: a resumed run has the same bits too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.distributed
from torch import nn
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from trainer.config.reduction import ZERO_PARAMETERS, choose_deferred_reduction, zero_stage
from trainer.engines.block import Block, list_parameters
from trainer.engines.block_gradients import BlockGradients, Reductions, compress_replicas
from trainer.engines.block_order import END, BlockOrder, Turn
from trainer.parallel.cast import is_cast_by_sharding
from trainer.parallel.engine import Recipe
from trainer.parallel.mesh import Mesh
from trainer.parallel.plain import PlainEngine
from trainer.parallel.same_model import check_device, check_same_tensors
from trainer.parallel.shard import group_modules
from trainer.parallel.units import Units
from trainer.precision import DTYPES

# Many of the names used here have no types, and mypy must give the same result where torch is not installed.
dist: Any = torch.distributed
_PASSES = "block_passes"
"""The attribute of a model that has its BlockPasses."""


class ShardedEngine(PlainEngine):
    """The engine in which ranks share parameters, gradients and the state of the optimizer."""

    def __init__(self, model: nn.Module, units: Units, recipe: Recipe, mesh: Mesh, choices: list[str]) -> None:
        super().__init__(model, units, recipe, mesh, choices)
        if not recipe.parallel.offload:
            check_device(model, mesh.device)
        self._passes = find_passes(model)
        copy_first_replica(self._passes.blocks, model, mesh)
        self._gradients = [BlockGradients(block, mesh, DTYPES[recipe.formats.reduced]) for block in self._passes.blocks]
        if recipe.compresses(mesh):
            self.compression = compress_replicas(self._passes.blocks, self._gradients, model, recipe, mesh)
        self._passes.on_backward = self._end_block
        self._reductions = Reductions()
        self._is_last = True
        self._is_compared, self._is_always_compared = True, recipe.parallel.check_blocks
        self._deferred, reason = choose_deferred_reduction(recipe.parallel, mesh.layout.replicate)
        if reason:
            choices.append(f"accumulate: {reason}")

    def differentiated_parameters(self) -> dict[str, nn.Parameter]:
        names = {value: name for name, value in self._parameters.items()}
        pairs = (
            (stored, whole)
            for block in self._passes.blocks
            for stored, whole in zip(block.sharded, block.whole, strict=True)
        )
        return {names[stored]: whole for stored, whole in pairs}

    @contextmanager
    def around(self, index: int, count: int) -> Iterator[None]:
        self._is_last = index == count - 1
        order = self._passes.order
        order.is_compared = self._is_compared
        self._reductions.abandon()
        self._passes.begin(is_first=index == 0, is_last=self._is_last)
        for gradients in self._gradients:
            gradients.begin(is_first=index == 0)
        yield
        # The inputs of the other blocks, such as an embedding, have no gradients.
        for gradients in reversed(self._gradients):
            self._start_reduction(gradients)
        self._reductions.finish()
        order.compare(self.mesh.group("shard"), END)
        order.is_compared = self._is_always_compared
        # Replicas meet in the last micro-batch of a step only, unless nothing is deferred.
        if self._is_last:
            self._is_compared = self._is_always_compared
        self._passes.end()

    def _end_block(self, index: int) -> None:
        # A layer that reentrant checkpoints call several times is differentiated, and reduced, call by call: on all
        # ranks, even if one of them has no gradient in this call.
        self._gradients[index].expect()
        self._start_reduction(self._gradients[index])

    def _start_reduction(self, gradients: BlockGradients) -> None:
        """Average a block over ranks, unless that has been done or is for a later micro-batch to do."""
        if gradients.is_waiting and (self._is_last or self._deferred != "all"):
            self._reductions.start(gradients.reduce(adds_replicas=self._is_last or self._deferred == "nothing"))


class BlockPasses:
    """The blocks of a model in the order of use, the first of which surrounds all others, and the hooks of a pass."""

    def __init__(self, blocks: list[Block], *, ahead: int, stays_whole: bool, whole_dtype: torch.dtype | None) -> None:
        """Gather `ahead` blocks in advance; with `stays_whole`, free them only in the last micro-batch of a step."""
        self.blocks = blocks
        self.order = blocks[0].turn.order
        self._ahead, self._stays_whole, self._dtype = ahead, stays_whole, whole_dtype
        self._is_last = True
        self._is_in_backward = False
        """Whether the backward pass has begun: what runs forward then is recomputed."""
        self.on_backward: Callable[[int], None] = lambda _: None
        """Called with the number of a block when its gradients are complete, as the gradient of its input is there."""
        for index, block in enumerate(blocks):
            for module in block.modules:
                module.register_forward_pre_hook(partial(self._before_forward, index), with_kwargs=True)
                module.register_forward_hook(partial(self._after_forward, index))

    def begin(self, *, is_first: bool, is_last: bool) -> None:
        """Prepare a forward and a backward pass."""
        self._is_last, self._is_in_backward = is_last, False
        for block in self.blocks:
            block.calls, block.is_in_graph, block.is_in_backward = 0, False, False
            if is_first:
                # After an exception, some blocks are still whole, with old values.
                block.free()

    def end(self) -> None:
        """Free what the backward pass has not freed."""
        self._is_in_backward = False
        for block in self.blocks:
            block.is_in_backward = False
            if self._is_last or not self._stays_whole:
                block.free()

    def _before_forward(self, index: int, _module: nn.Module, args: Any, kwargs: Any) -> Any:
        """Gather a block, and return the inputs in the format of its parameters."""
        block = self.blocks[index]
        block.gather()
        leaves, structure = tree_flatten((args, kwargs))
        if self._dtype is not None:
            leaves = [_cast(leaf, self._dtype) for leaf in leaves]
        # A layer that the model itself recomputes is called again in the backward pass; its hooks are there already.
        if not block.is_in_backward:
            for later in self.blocks[index + 1 : index + 1 + self._ahead] if not self._is_in_backward else ():
                later.begin_gather()
            if torch.is_grad_enabled():
                block.calls += 1
                leaves = _call_after_backward(leaves, partial(self._after_backward, index))
        return tree_unflatten(leaves, structure)

    def _after_forward(self, index: int, module: nn.Module, _args: Any, output: Any) -> None:
        block = self.blocks[index]
        if block.is_in_backward:
            return
        outputs = tree_leaves(output)
        # A weight that is an output would collect a hook in every step.
        tracked = [leaf for leaf in outputs if isinstance(leaf, torch.Tensor) and leaf.grad_fn is not None]
        for leaf in tracked:
            leaf.register_hook(partial(self._before_backward, index))
        block.is_in_graph = block.is_in_graph or bool(tracked)
        # Outputs may be in an object that torch does not look into. Then no hook would gather the block again.
        has_tensors = any(isinstance(leaf, torch.Tensor) for leaf in outputs)
        is_hidden = not tracked and not (has_tensors and all(_has_no_graph(leaf) for leaf in outputs))
        is_used_soon = self._stays_whole or index in (0, len(self.blocks) - 1) or is_hidden or self._is_in_backward
        if module is block.modules[-1] and not (torch.is_grad_enabled() and is_used_soon):
            for used in self.blocks if index == 0 else [block]:
                used.free()

    def _before_backward(self, index: int, _gradient: torch.Tensor) -> None:
        block = self.blocks[index]
        self._is_in_backward, block.is_in_backward = True, True
        block.gather()
        for earlier in self.blocks[max(0, index - self._ahead) : index][::-1]:
            if earlier.is_in_graph:
                earlier.begin_gather()

    def _after_backward(self, index: int) -> None:
        """Free a block after the backward pass of all of its calls; those whose inputs have no gradients never end."""
        block = self.blocks[index]
        block.calls -= 1
        if block.calls:
            return
        if self._is_last or not self._stays_whole:
            block.is_in_backward = False
            block.free()
        # Autograd adds up the gradients of weights as soon as it has them, so those of this block are there by now. If
        # the last of them started the collective, ranks that leave out different weights would start different ones.
        self.on_backward(index)


def shard_blocks(model: nn.Module, units: Units, recipe: Recipe, mesh: Mesh) -> None:
    """Replace the parameters of a model by shards, and register the hooks that gather them."""
    # The stages of a pipeline differ; ranks have compared the whole model before.
    if dist.is_initialized() and dist.get_world_size() > 1 and mesh.layout.pipeline == 1:
        check_same_tensors(model, dist.group.WORLD, mesh.device)
    dtype = DTYPES[recipe.formats.products] if is_cast_by_sharding(model, recipe, mesh) else None
    groups = [*group_modules(model, units), [model]]
    # The root's parameters are those that no other group has, but it is the first in the order of use.
    *owned, root = zip(groups, list_parameters(model, groups), strict=True)
    ordered = [root, *owned]
    order = BlockOrder(_list_names(model, [modules for modules, _ in ordered]), mesh.device)
    blocks = [
        Block(modules, parameters, Turn(order, number), mesh, dtype, is_offloaded=recipe.parallel.offload)
        for number, (modules, parameters) in enumerate(ordered)
    ]
    vars(model)[_PASSES] = BlockPasses(
        blocks,
        ahead=recipe.parallel.prefetch,
        # In a pipeline, every micro-batch would gather the weights again.
        stays_whole=zero_stage(recipe.parallel) < ZERO_PARAMETERS or recipe.parallel.pipeline > 1,
        whole_dtype=dtype,
    )


def find_passes(model: nn.Module) -> BlockPasses:
    """Return what `shard_blocks` has attached to a model."""
    passes: BlockPasses = vars(model)[_PASSES]
    return passes


def _list_names(model: nn.Module, groups: list[list[nn.Module]]) -> list[str]:
    """Return the names of the modules of each group."""
    names = {module: name for name, module in model.named_modules()}
    return [", ".join(names[module] or type(model).__name__ for module in group) for group in groups]


def copy_first_replica(blocks: list[Block], model: nn.Module, mesh: Mesh) -> None:
    """Give all ranks the values of the first replica: initial values may differ between processors."""
    replicas = mesh.group("replicate")
    for block in blocks if replicas is not None else ():
        values = block.shard.to(mesh.device)
        dist.broadcast(values, group=replicas, group_src=0)
        block.shard.copy_(values)
    for buffer in model.buffers():
        mesh.broadcast_over_data(buffer)


class _AfterBackward(torch.autograd.Function):
    """Return the inputs of a module unchanged, and call a function when their gradients are computed.

    A hook of the inputs would not do: they may be the outputs of the module's last call, whose hook gathers the block.
    """

    @staticmethod
    def forward(context: Any, function: Callable[[], None], *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        context.function = function
        return tensors

    @staticmethod
    def backward(context: Any, *gradients: Any) -> Any:
        context.function()
        return (None, *gradients)


def _call_after_backward(leaves: list[Any], function: Callable[[], None]) -> list[Any]:
    tracked = [index for index, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
    if tracked:
        results = _AfterBackward.apply(function, *(leaves[index] for index in tracked))
        for index, result in zip(tracked, results, strict=True):
            leaves[index] = result
    return leaves


def _has_no_graph(leaf: Any) -> bool:
    """Return whether an output surely leads to no backward pass: a tensor without a gradient, or a plain value."""
    if isinstance(leaf, torch.Tensor):
        return not leaf.requires_grad
    return leaf is None or isinstance(leaf, bool | int | float | complex | str | bytes)


def _cast(leaf: Any, dtype: torch.dtype) -> Any:
    return leaf.to(dtype) if isinstance(leaf, torch.Tensor) and leaf.is_floating_point() else leaf
