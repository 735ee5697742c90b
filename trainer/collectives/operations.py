"""All-reduce, reduce-scatter, all-gather and broadcast of tensors over a group of ranks.

Tensors may have any dtype that can be added, any number of elements (also none), contiguous or not, on the device of
the group's backend. `reduce_scatter` and `all_gather` take whole tensors, as torch.distributed's
`reduce_scatter_tensor` and `all_gather_into_tensor` do; the root of a broadcast is a rank of the group, not of the
world. All ranks of the group must call with the same number of elements, the same dtype and the same options: on a CPU
that is checked, and all of them raise CallsDiffer before a tensor is changed. Results are equal on all ranks, bit for
bit, and from run to run; the file of each pattern documents the order of its sums. Sums are rounded to the tensor's
dtype after every addition.

With `async_op`, a call returns a handle at once. The collective runs in the background, after those that were called
before it for the same group; the tensors belong to it until `handle.wait()` returns or raises what went wrong.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Literal, get_args

import torch
import torch.distributed

from trainer.collectives import broadcast as binomial_tree
from trainer.collectives import double_tree, halving_doubling, hierarchical, ring
from trainer.collectives.agreement import check_agreement
from trainer.collectives.background import Handle, OnEnd, launch
from trainer.collectives.exchange import is_early, run_plan, run_schedule
from trainer.collectives.exchange_plan import ExchangePlan, plan_exchange
from trainer.collectives.schedule import Schedule, plan_block_chunks, plan_chunks

# Many of the names used here have no types, and mypy must give the same result where torch is not installed.
dist: Any = torch.distributed

DEVICES = {"gloo": "cpu", "nccl": "cuda"}
Pattern = Literal["ring", "halving_doubling", "tree", "hierarchical"]
BLOCK_BYTES = 8 << 20
"""Largest block of a chunk. Fewer, larger messages cost less processor time, but additions overlap less with them."""
HIERARCHICAL_CHUNK_BYTES, HIERARCHICAL_LEAST_BLOCK_BYTES = 4 << 20, 256 << 10
"""Size of a chunk of `hierarchical`: links between nodes are busy with other chunks while ranks exchange inside. Blocks
are not smaller than the second value, so that chunks are larger on more than 16 ranks."""


def all_reduce(  # noqa: PLR0913  # options by name
    tensor: Any,
    group: Any = None,
    *,
    pattern: Pattern = "ring",
    average: bool = False,
    ranks_per_node: int | None = None,
    block_bytes: int | None = None,
    is_checked: bool = True,
    async_op: bool = False,
    on_end: OnEnd | None = None,
) -> Handle | None:
    """Replace the tensor by its sum, or its average, over all ranks of the group.

    An average divides every contribution by the number of ranks before the sum, as NCCL and DDP do, so that half
    precision does not overflow. `hierarchical` needs `ranks_per_node`. Callers that know that the calls of all ranks
    agree, as engines do that have compared their models, save messages with `is_checked=False`. At the end, `on_end`
    is called with the error, or None, on the thread that ran the collective.
    """
    rank, ranks = _rank_in(group)
    if block_bytes is None:
        block_bytes = choose_block_bytes(pattern, ranks)
    plan = _plan_all_reduce(
        (pattern, rank, ranks, ranks_per_node),
        (tensor.numel(), _block_elements(tensor, block_bytes)),
        tensor.element_size(),
        is_early(tensor.device),
    )
    line = _describe("all_reduce", tensor, group, f"{pattern} {average=} {ranks_per_node=} {block_bytes=}")
    if average:
        _check_division(tensor)

    def run() -> None:
        if is_checked:
            _agree(line, tensor, group)
        flat = _flatten(tensor)
        if average:
            flat.div_(ranks)
        run_plan(flat, plan, group)
        _write_back(flat, tensor)

    return launch(run, group, tensor.device, async_op=async_op, on_end=on_end)


def reduce_scatter(  # noqa: PLR0913  # options by name
    output: Any,
    tensor: Any,
    group: Any = None,
    *,
    average: bool = False,
    block_bytes: int = BLOCK_BYTES,
    async_op: bool = False,
) -> Handle | None:
    """Write part r of the tensor's sum, or average, over all ranks into the output of rank r, with a ring.

    The tensor has as many elements as all outputs together. It is not changed: the sums are made in a copy.
    """
    rank, ranks = _rank_in(group)
    _check_parts("output", output, tensor, ranks)
    line = _describe("reduce_scatter", tensor, group, f"{average=} {block_bytes=}")
    if average:
        _check_division(tensor)
    chunks = plan_block_chunks(tensor.numel(), ranks, _block_elements(tensor, block_bytes))
    schedule = ring.schedule_reduce_scatter(rank, ranks)

    def run() -> None:
        _agree(line, tensor, group)
        flat = tensor.detach().clone(memory_format=torch.contiguous_format).view(-1)
        if average:
            flat.div_(ranks)
        run_schedule(flat, schedule, chunks, group)
        part = output.numel()
        output.detach().copy_(flat[rank * part : (rank + 1) * part].view(output.shape))

    return launch(run, group, tensor.device, async_op=async_op)


def all_gather(
    output: Any, tensor: Any, group: Any = None, *, block_bytes: int = BLOCK_BYTES, async_op: bool = False
) -> Handle | None:
    """Write the tensors of all ranks into the output of every rank, in the order of the ranks, with a ring."""
    rank, ranks = _rank_in(group)
    _check_parts("tensor", tensor, output, ranks)
    line = _describe("all_gather", output, group, f"{block_bytes=}")
    chunks = plan_block_chunks(output.numel(), ranks, _block_elements(output, block_bytes))
    schedule = ring.schedule_all_gather(rank, ranks)

    def run() -> None:
        _agree(line, output, group)
        flat = _flatten(output)
        part = tensor.numel()
        flat[rank * part : (rank + 1) * part].copy_(tensor.detach().reshape(-1))
        run_schedule(flat, schedule, chunks, group)
        _write_back(flat, output)

    return launch(run, group, output.device, async_op=async_op)


def broadcast(
    tensor: Any, group: Any = None, *, root: int, block_bytes: int = BLOCK_BYTES, async_op: bool = False
) -> Handle | None:
    """Replace the tensor by that of rank `root` of the group, with a binomial tree."""
    rank, ranks = _rank_in(group)
    if not 0 <= root < ranks:
        raise ValueError(f"root is {root}, but the group has the ranks 0 to {ranks - 1}")
    line = _describe("broadcast", tensor, group, f"{root=} {block_bytes=}")
    chunks = plan_chunks(tensor.numel(), 1, _block_elements(tensor, block_bytes))
    schedule = binomial_tree.schedule_broadcast(rank, ranks, root)

    def run() -> None:
        _agree(line, tensor, group)
        flat = _flatten(tensor)
        run_schedule(flat, schedule, chunks, group)
        _write_back(flat, tensor)

    return launch(run, group, tensor.device, async_op=async_op)


def choose_block_bytes(pattern: Pattern, ranks: int) -> int:
    """Return the largest size of a block that an all-reduce uses by default."""
    if pattern == "hierarchical":
        return max(HIERARCHICAL_LEAST_BLOCK_BYTES, HIERARCHICAL_CHUNK_BYTES // ranks)
    return BLOCK_BYTES


@lru_cache(maxsize=256)
def _plan_all_reduce(
    arguments: tuple[Pattern, int, int, int | None], sizes: tuple[int, int], element_bytes: int, is_early: bool
) -> ExchangePlan:
    """Plan an all-reduce; `sizes` has the elements of the tensor and the most elements of a block."""
    schedule = _schedule_all_reduce(*arguments)
    chunks = plan_chunks(sizes[0], schedule.blocks, sizes[1])
    return plan_exchange(schedule, chunks, element_bytes, is_early=is_early)


def _schedule_all_reduce(pattern: Pattern, rank: int, ranks: int, ranks_per_node: int | None) -> Schedule:
    if pattern not in get_args(Pattern):
        raise ValueError(f"pattern is {pattern!r}, but must be one of {', '.join(get_args(Pattern))}")
    if pattern == "hierarchical" and ranks_per_node is None:
        raise ValueError("pattern 'hierarchical' needs ranks_per_node")
    if pattern != "hierarchical" and ranks_per_node is not None:
        raise ValueError(f"ranks_per_node has no effect with pattern {pattern!r}, only with 'hierarchical'")
    match pattern:
        case "ring":
            return ring.schedule_all_reduce(rank, ranks)
        case "halving_doubling":
            return halving_doubling.schedule_all_reduce(rank, ranks)
        case "tree":
            return double_tree.schedule_all_reduce(rank, ranks)
        case "hierarchical":
            return hierarchical.schedule_all_reduce(rank, ranks, ranks_per_node or 0)


def _rank_in(group: Any) -> tuple[int, int]:
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    if rank < 0:
        raise ValueError(f"rank {dist.get_rank()} is not in the group")
    return rank, ranks


def _describe(operation: str, tensor: Any, group: Any, options: str) -> str:
    """Return the line that must be the same on all ranks; refuse a tensor on a device that the backend cannot send."""
    backend = dist.get_backend(group)
    device = DEVICES.get(backend, tensor.device.type)
    if tensor.device.type != device:
        raise ValueError(f"the tensor is on {tensor.device}, but {backend} sends tensors on {device} only")
    return f"{operation} of {tensor.numel()} x {str(tensor.dtype).removeprefix('torch.')} {options}"


def _agree(line: str, tensor: Any, group: Any) -> None:
    if tensor.device.type == "cpu":
        check_agreement(line, group, *_rank_in(group))


def _flatten(tensor: Any) -> Any:
    """Return the elements in logical order, which is the same on all ranks: a view if the tensor is contiguous."""
    return tensor.detach().contiguous().view(-1)


def _write_back(flat: Any, tensor: Any) -> None:
    if not tensor.is_contiguous():
        tensor.detach().copy_(flat.view(tensor.shape))


def _check_division(tensor: Any) -> None:
    if not (tensor.is_floating_point() or tensor.is_complex()):
        raise ValueError(f"average needs a floating-point tensor, not {tensor.dtype}: sum it and divide the result")


def _block_elements(tensor: Any, block_bytes: int) -> int:
    if block_bytes < 1:
        raise ValueError(f"block_bytes is {block_bytes}, but must be at least 1")
    return max(1, block_bytes // tensor.element_size())


def _check_parts(name: str, part: Any, whole: Any, ranks: int) -> None:
    if part.numel() * ranks != whole.numel():
        size = part.numel()
        raise ValueError(f"{name} has {size} elements: {ranks} of them have {size * ranks}, not {whole.numel()}")
    if part.device != whole.device:
        raise ValueError(f"{name} is on {part.device}, the other tensor on {whole.device}")
    if part.dtype != whole.dtype:
        raise ValueError(f"{name} has dtype {part.dtype}, the other tensor {whole.dtype}")
