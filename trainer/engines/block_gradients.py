"""The gradients of a block: collected whole, averaged over ranks, and left as this rank's rows."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed
from torch import nn

from trainer.engines.block import Block, RowSharing
from trainer.engines.block_order import ALL_REDUCE, REDUCE_SCATTER
from trainer.engines.flat_layout import count_values, is_padded, plan_parts
from trainer.engines.reduction import StartParts, Wait, choose_compressed_average
from trainer.parallel.engine import Recipe
from trainer.parallel.gradients import to_local
from trainer.parallel.mesh import Mesh

if TYPE_CHECKING:
    from trainer.compression.compression import Compression, Part

# Many of the names used here have no types, and mypy must give the same result where torch is not installed.
dist: Any = torch.distributed


class BlockGradients:
    """The gradients of the trained parameters of a block.

    Autograd's gradients of whole parameters stay as they are until the block is complete. Its whole parameters are
    freed by then, and the gradients are copied to a flat tensor, in the format in which ranks exchange them, with a row
    for each rank. Only the backend needs that tensor once the reduce-scatter has started. A copy of each gradient when
    it arrives would take more memory: the tensor, and a gradient, next to whole parameters and what the last block
    sends.
    """

    def __init__(self, block: Block, mesh: Mesh, sent_dtype: torch.dtype) -> None:
        self.start_average: Callable[[torch.Tensor], Wait] = self._start_average
        """Starts to average this rank's rows over the replicas."""
        pairs = zip(block.whole, block.sharded, strict=True)
        trained = [(whole, sharded) for whole, sharded in pairs if whole.requires_grad]
        self.is_waiting = False
        """Whether the gradients of this backward pass are still to be reduced."""
        self._mesh, self._dtype = mesh, sent_dtype
        self._turn = block.turn
        self._sharing, self._rank = RowSharing(mesh), mesh.coordinate("shard")
        self._sharded = [sharded for _, sharded in trained]
        self._ranks = mesh.weights.shard
        self._parts = plan_parts([whole.shape for whole, _ in trained], self._ranks)
        self.size = count_values(self._parts)
        """Values that this rank has of the gradients, including padding."""
        self._whole: dict[int, torch.Tensor] = {}
        """The gradients since the last reduction, by the number of the parameter."""
        self._own_replica: torch.Tensor | None = None
        """The sum of earlier micro-batches, averaged within this replica only."""
        for number, (whole, _) in enumerate(trained):
            # Autograd would round a gradient to the format of the parameter, even one that it has computed in fp32.
            if whole.dtype != sent_dtype:
                whole.grad_dtype = None
            whole.register_post_accumulate_grad_hook(partial(self._add, number))

    def begin(self, *, is_first: bool) -> None:
        """Expect the gradients of a backward pass, which is the first of a step or adds to those before."""
        self.expect()
        if is_first:
            # After an exception, those of an unfinished step are left.
            self._whole.clear()
            self._own_replica = None

    def expect(self) -> None:
        """Let the next reduction send, be there gradients or not."""
        self.is_waiting = bool(self._parts)

    def reduce(self, *, adds_replicas: bool) -> Iterator[Wait]:
        """Average over ranks and add the result to the gradients of the sharded parameters.

        This is a generator: each part starts a collective and yields the function that waits for it, to be called
        before the next part. On a GPU only the stream waits.
        """
        self.is_waiting = False
        averages = self._fill_rows().view(-1)
        self._whole.clear()
        group, replicas = self._mesh.group("shard"), self._mesh.group("replicate")
        if group is not None:
            self._turn.compare(group, REDUCE_SCATTER)
            sent, averages = averages, averages.new_empty(averages.numel() // self._ranks)
            wait = self._start_scatter(averages, sent)
            # gloo sends a copy, which takes as much memory while the next block is computed. NCCL has a reference.
            del sent
            yield partial(self._wait_for, REDUCE_SCATTER, wait)
            del wait
        if self._own_replica is not None:
            averages += self._own_replica
            self._own_replica = None
        if replicas is not None and not adds_replicas:
            self._own_replica = averages
            return
        if replicas is not None:
            self._turn.compare(replicas, ALL_REDUCE)
            yield partial(self._wait_for, ALL_REDUCE, self.start_average(averages))
        self._hand_out(averages)

    def _wait_for(self, action: int, wait: Wait) -> None:
        with self._turn.name_errors(action):
            wait()

    def _start_scatter(self, averages: torch.Tensor, sent: torch.Tensor) -> Wait:
        group = self._mesh.group("shard")
        work = dist.reduce_scatter_tensor(averages, sent, op=dist.ReduceOp.AVG, group=group, async_op=True)
        wait: Wait = work.wait
        return wait

    def _start_average(self, averages: torch.Tensor) -> Wait:
        work = dist.all_reduce(averages, op=dist.ReduceOp.AVG, group=self._mesh.group("replicate"), async_op=True)
        wait: Wait = work.wait
        return wait

    def _add(self, number: int, parameter: torch.Tensor) -> None:
        gradient: Any = parameter.grad
        parameter.grad = None
        if number in self._whole:
            gradient = self._whole[number].to(self._dtype).add_(gradient)
        self._whole[number] = gradient
        self.is_waiting = True

    def _fill_rows(self) -> torch.Tensor:
        """Return all gradients, a row for each rank; a parameter that the loss does not depend on has zeros."""
        shape = (self._ranks, self.size)
        allocate = torch.zeros if is_padded(self._parts, self._ranks) else torch.empty
        rows = allocate(shape, dtype=self._dtype, device=self._mesh.device)
        pairs = []
        for number, part in enumerate(self._parts):
            if number in self._whole:
                pairs += part.pair_rows(rows, self._whole[number])
            else:
                part.view_columns(rows).zero_()
        if pairs:
            places, values = zip(*pairs, strict=True)
            torch._foreach_copy_(places, values)
        return rows

    def _hand_out(self, averages: torch.Tensor) -> None:
        # To the host if parameters are offloaded: this waits for the device, so the update may follow.
        averages = averages.to(self._sharded[0].device, self._sharded[0].dtype)
        for parameter, part in zip(self._sharded, self._parts, strict=True):
            rows = part.view_shard(averages, self._rank)
            if parameter.grad is None:
                parameter.grad = self._sharing.join(rows, parameter.shape)
            else:
                to_local(parameter.grad).add_(rows)


class Reductions:
    """The reductions of blocks that are on their way, oldest first."""

    def __init__(self) -> None:
        self._running: deque[tuple[Iterator[Wait], Wait]] = deque()
        """Each with the function that waits for its present collective."""

    def start(self, reduction: Iterator[Wait]) -> None:
        """Start a reduction, after the next collectives of the earlier ones."""
        self._continue_all()
        self._start_next(reduction)

    def finish(self) -> None:
        """Wait until all reductions have ended."""
        while self._running:
            self._continue_all()

    def abandon(self) -> None:
        """Wait for what an exception in the last pass has left: collectives write to tensors that nobody else needs."""
        while self._running:
            _, wait = self._running.popleft()
            wait()

    def _continue_all(self) -> None:
        """Wait for the collective of each reduction, and start its next one, if there is any."""
        for _ in range(len(self._running)):
            reduction, wait = self._running.popleft()
            wait()
            # It refers to the work of the backend, which may hold a copy of what was sent.
            del wait
            self._start_next(reduction)

    def _start_next(self, reduction: Iterator[Wait]) -> None:
        wait = next(reduction, None)
        if wait is not None:
            self._running.append((reduction, wait))


def compress_replicas(
    blocks: list[Block], gradients: list[BlockGradients], model: nn.Module, recipe: Recipe, mesh: Mesh
) -> Compression:
    """Let blocks be averaged over the replicas in compressed form."""
    # Start-up: the modules of compression are imported only by runs that use them.
    from trainer.compression.compression import Part  # noqa: PLC0415

    parts = {}
    for block, own in zip(blocks, gradients, strict=True):
        if own.size:
            # The name that torch's engine gives the same gradients: checkpoints with residuals serve both.
            first = next(name for name, module in model.named_modules() if module in block.modules)
            parts[own] = Part(first or "root", (own.size,))
    start, compression = choose_compressed_average(list(parts.values()), recipe, mesh)
    for own, part in parts.items():
        own.start_average = partial(_start_part, start, part)
    return compression


def _start_part(start: StartParts, part: Part, averages: torch.Tensor) -> Wait:
    return start(averages, [part])
