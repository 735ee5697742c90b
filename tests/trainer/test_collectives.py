"""Collectives on 1 to 9 gloo ranks against torch's own: exact for integers, within rounding for floats.

All cases of a test run in one call of `on_ranks`, because starting ranks takes longer than the cases. Each rank checks
its own result; the test compares the results of the ranks with each other, bit for bit.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.trainer.ranks import on_ranks
from trainer.collectives import operations
from trainer.collectives.agreement import CallsDiffer
from trainer.collectives.background import Handle
from trainer.collectives.exchange import run_schedule
from trainer.collectives.exchange_plan import count_slots, list_stops
from trainer.collectives.operations import all_gather, all_reduce, broadcast, choose_block_bytes, reduce_scatter
from trainer.collectives.schedule import Schedule, Transfer

WORLD = 9
HERE = "tests.trainer.test_collectives"
DTYPES = (
    torch.float32,
    torch.float64,
    torch.bfloat16,
    torch.float16,
    torch.int64,
    torch.int32,
    torch.int8,
    torch.uint8,
)
SIZES = (0, 1, 2, 3, 7, 8, 31, 64, 257, 1000)
# Small, so that small tensors have several chunks.
BLOCK_BYTES = (16, 128, 1 << 20)
# (pattern, ranks, ranks per node)
PATTERNS = [
    (pattern, ranks, None) for pattern in ("ring", "halving_doubling", "tree") for ranks in range(1, WORLD + 1)
] + [
    ("hierarchical", ranks, size) for ranks in range(1, WORLD + 1) for size in range(1, ranks + 1) if ranks % size == 0
]


@dataclass(frozen=True)
class Case:
    """Inputs that are the same on all ranks; rank r of the group contributes `make_tensor(case, r)`."""

    seed: int
    members: tuple[int, ...]
    dtype: torch.dtype
    size: int
    block_bytes: int
    average: bool
    is_contiguous: bool


def draw_case(seed: int, ranks: int) -> Case:
    draw = random.Random(seed)
    dtype = draw.choice(DTYPES)
    return Case(
        seed=seed,
        # One group for each number of ranks, because each group has a thread. Most leave out rank 0, and have gaps.
        members=tuple(sorted((5 + 2 * number) % WORLD for number in range(ranks))),
        dtype=dtype,
        size=draw.choice(SIZES),
        block_bytes=draw.choice(BLOCK_BYTES),
        average=dtype.is_floating_point and draw.random() < 0.5,
        is_contiguous=draw.random() < 0.5,
    )


def make_tensor(case: Case, rank: int, parts: int = 1) -> Any:
    """Return a contribution of `parts` times the size; one that is not contiguous is every second column."""
    generator = torch.Generator().manual_seed(1000 * case.seed + rank)
    shape = (parts * case.size, 1 if case.is_contiguous else 2)
    if case.dtype.is_floating_point:
        values = torch.randn(shape, generator=generator, dtype=torch.float64)
    else:
        # Sums of 8-bit integers overflow, and wrap around as in torch.
        values = torch.randint(0, 100, shape, generator=generator)
    return values.to(case.dtype)[:, 0]


@cache
def group_of(members: tuple[int, ...]) -> Any:
    return dist.new_group(list(members))


def digest(tensor: Any) -> str:
    return hashlib.sha256(
        tensor.clone(memory_format=torch.contiguous_format).view(torch.uint8).numpy().tobytes()
    ).hexdigest()


def check_sum(case: Case, result: Any, contributions: Any, torch_sum: Any) -> None:
    """Compare a sum with torch's and, for floats, with the exact one.

    A float sum of n contributions has n-1 additions, each rounded by at most epsilon times the sum of the magnitudes;
    an average also rounds each contribution. Half precision may be subnormal after a division.
    """
    ranks = len(case.members)
    if not case.dtype.is_floating_point:
        assert torch.equal(result, torch_sum)
        return
    limits = torch.finfo(case.dtype)
    divisor = ranks if case.average else 1
    exact = contributions.double().sum(0) / divisor
    bound = ranks * limits.eps * contributions.double().abs().sum(0) / divisor + ranks * limits.smallest_normal
    assert bool(((result.double() - exact).abs() <= bound).all())
    assert bool(((result.double() - torch_sum.double() / divisor).abs() <= 2 * bound).all())


def run_cases(check: Callable[[Case, Any, int], Any], cases: list[Case]) -> list[list[str]]:
    """Check the cases on this rank and return the digests of their results; none where it is not in the group."""
    digests = []
    for case in cases:
        group, rank = group_of(case.members), dist.get_rank()
        try:
            result = check(case, group, case.members.index(rank)) if rank in case.members else ()
            # Some checks are generators, which run only here.
            digests.append([digest(tensor) for tensor in result])
        except Exception as error:
            error.add_note(f"rank {rank}: {case}")
            raise
    return digests


def all_reduce_digests(seed: int, repeat: int) -> list[list[str]]:
    digests = []
    for number, (pattern, ranks, ranks_per_node) in enumerate(PATTERNS * repeat):

        def check(case: Case, group: Any, rank: int, pattern=pattern, ranks_per_node=ranks_per_node) -> Iterator[Any]:
            contributions = torch.stack([make_tensor(case, other) for other in range(len(case.members))])
            tensor, torch_sum = make_tensor(case, rank), contributions[rank].clone()
            dist.all_reduce(torch_sum, group=group)
            options = {"average": case.average, "ranks_per_node": ranks_per_node, "block_bytes": case.block_bytes}
            all_reduce(tensor, group, pattern=pattern, **options)
            check_sum(case, tensor, contributions, torch_sum)
            yield tensor

        digests += run_cases(check, [draw_case(seed + number, ranks)])
    return digests


def reduce_scatter_digests(seed: int, repeat: int) -> list[list[str]]:
    def check(case: Case, group: Any, rank: int) -> Iterator[Any]:
        ranks = len(case.members)
        contributions = torch.stack([make_tensor(case, other, parts=ranks) for other in range(ranks)])
        tensor, output = make_tensor(case, rank, parts=ranks), make_tensor(case, ranks)
        torch_sum = contributions[rank].clone()
        dist.all_reduce(torch_sum, group=group)
        reduce_scatter(output, tensor, group, average=case.average, block_bytes=case.block_bytes)
        assert torch.equal(tensor, contributions[rank])
        part = slice(rank * case.size, (rank + 1) * case.size)
        check_sum(case, output, contributions[:, part], torch_sum[part])
        return iter(())

    return run_cases(check, [draw_case(seed + number, 1 + number % WORLD) for number in range(repeat * WORLD)])


def all_gather_digests(seed: int, repeat: int) -> list[list[str]]:
    def check(case: Case, group: Any, rank: int) -> Iterator[Any]:
        ranks = len(case.members)
        output = make_tensor(case, 0, parts=ranks)
        all_gather(output, make_tensor(case, rank), group, block_bytes=case.block_bytes)
        assert torch.equal(output, torch.cat([make_tensor(case, other) for other in range(ranks)]))
        yield output

    return run_cases(check, [draw_case(seed + number, 1 + number % WORLD) for number in range(repeat * WORLD)])


def broadcast_digests(seed: int, repeat: int) -> list[list[str]]:
    def check(case: Case, group: Any, rank: int) -> Iterator[Any]:
        root = case.seed % len(case.members)
        tensor = make_tensor(case, rank)
        broadcast(tensor, group, root=root, block_bytes=case.block_bytes)
        assert torch.equal(tensor, make_tensor(case, root))
        yield tensor

    return run_cases(check, [draw_case(seed + number, 1 + number % WORLD) for number in range(repeat * WORLD)])


def assert_equal_on_all_ranks(digests: list[list[list[str]]]) -> None:
    for case in zip(*digests, strict=True):
        assert len({tuple(results) for results in case if results}) <= 1


OPERATIONS = ("all_reduce", "reduce_scatter", "all_gather", "broadcast")


@pytest.mark.parametrize("operation", OPERATIONS)
def test_results_match_torch_and_are_equal_on_all_ranks(operation: str) -> None:
    assert_equal_on_all_ranks(on_ranks(f"{HERE}:{operation}_digests", ranks=WORLD, seed=0, repeat=2))


@pytest.mark.nightly
@pytest.mark.parametrize("operation", OPERATIONS)
def test_many_results_match_torch_and_are_equal_on_all_ranks(operation: str) -> None:
    assert_equal_on_all_ranks(on_ranks(f"{HERE}:{operation}_digests", ranks=WORLD, seed=10_000, repeat=30))


def large_sum_digests() -> list[list[str]]:
    """Sum 13 MB with the default blocks: more than sockets buffer, so ranks that only send would wait forever."""
    digests = []
    for options in (
        {"pattern": "ring"},
        {"pattern": "halving_doubling"},
        {"pattern": "tree"},
        {"pattern": "hierarchical", "ranks_per_node": 3},
    ):
        tensor = torch.arange(3_250_001, dtype=torch.int32) * (dist.get_rank() + 1)
        all_reduce(tensor, **options)
        assert torch.equal(tensor, torch.arange(3_250_001, dtype=torch.int32) * 45)
        digests.append([digest(tensor)])
    return digests


def special_tensors() -> None:
    """Check tensors that the table does not have, on all ranks of the world."""
    rank = dist.get_rank()
    largest = torch.full((3,), 60_000.0, dtype=torch.float16)
    all_reduce(largest, average=True)
    assert bool(largest.isfinite().all())

    transposed = torch.arange(12.0).view(3, 4).t() * (rank + 1)
    all_reduce(transposed, pattern="tree")
    assert torch.equal(transposed, torch.arange(12.0).view(3, 4).t() * 45)

    scalar = torch.nn.Parameter(torch.tensor(float(rank)))
    broadcast(scalar, root=4)
    assert scalar.item() == 4

    # Tensors that share memory with others change only their own elements.
    whole = torch.full((4, 6), rank, dtype=torch.complex64)
    all_reduce(whole[:, 1:3], pattern="halving_doubling")
    assert whole.real.sum(0).tolist() == [4 * rank, 144, 144, 4 * rank, 4 * rank, 4 * rank]

    gaps = torch.full((2, 2 * WORLD), -1)
    all_gather(gaps[:, ::2], torch.tensor([rank, rank]))
    assert gaps[:, ::2].flatten().tolist() == [number // 2 for number in range(2 * WORLD)]
    assert bool((gaps[:, 1::2] == -1).all())

    values = torch.tensor([float("inf"), -float("inf"), float("nan")])
    all_reduce(values)
    assert [str(value) for value in values.tolist()] == ["inf", "-inf", "nan"]


def refusals() -> list[str]:
    """Return the messages of all calls that are refused, before anything is sent."""
    tensor = torch.ones(4)
    outside = dist.new_group([0])
    calls: list[Callable[[], Any]] = [
        lambda: all_reduce(tensor, pattern="star"),
        lambda: all_reduce(tensor, pattern="hierarchical"),
        lambda: all_reduce(tensor, pattern="ring", ranks_per_node=3),
        lambda: all_reduce(tensor, pattern="hierarchical", ranks_per_node=2),
        lambda: all_reduce(torch.ones(4, dtype=torch.int32), average=True),
        lambda: reduce_scatter(torch.ones(2), tensor),
        lambda: all_gather(torch.ones(36, dtype=torch.float64), tensor),
        lambda: broadcast(tensor, root=9),
        lambda: all_reduce(tensor, average=True, block_bytes=0),
        lambda: all_reduce(torch.ones(4, device="meta")),
        lambda: reduce_scatter(torch.ones(4, device="meta"), torch.ones(36)),
    ]
    if dist.get_rank() > 0:
        calls.append(lambda: all_reduce(tensor, outside))
    messages = []
    for call in calls:
        with pytest.raises(ValueError) as refusal:  # noqa: PT011  # the caller compares the text
            call()
        messages.append(str(refusal.value))
    assert torch.equal(tensor, torch.ones(4))
    return messages


def wait_for(handle: Handle | None) -> None:
    assert handle is not None
    handle.wait()


def calls_that_differ() -> list[str]:
    """Return the messages of calls that differ on one rank or on all, and check that no tensor has changed."""
    rank = dist.get_rank()
    tensor, part = torch.full((40,), 1.0 + rank), torch.ones(2)
    calls: list[Callable[[], Any]] = [
        lambda: all_reduce(tensor[: 39 if rank == 3 else 40], average=True),
        lambda: all_reduce(tensor, pattern="tree" if rank == 0 else "ring"),
        lambda: all_reduce(tensor.double() if rank % 2 else tensor),
        lambda: broadcast(tensor, root=rank),
        lambda: all_gather(torch.ones(2 * WORLD), part) if rank == 8 else wait_for(all_reduce(tensor, async_op=True)),
    ]
    messages = []
    for call in calls:
        with pytest.raises(CallsDiffer) as refusal:
            call()
        messages.append(str(refusal.value))
    assert torch.equal(tensor, torch.full((40,), 1.0 + rank))
    # The group is still usable.
    all_reduce(tensor)
    assert torch.equal(tensor, torch.full((40,), 45.0))
    return messages


def test_calls_that_differ_between_ranks_are_refused_on_all_of_them() -> None:
    by_rank = on_ranks(f"{HERE}:calls_that_differ", ranks=WORLD)
    assert all(messages == by_rank[0] for messages in by_rank)
    size, pattern, dtype, root, operation = by_rank[0]
    assert size == (
        "all ranks of a group must make the same call, but they differ: "
        "ranks 0, 1, 2, 4, 5, 6, 7, 8: "
        "all_reduce of 40 x float32 ring average=True ranks_per_node=None block_bytes=8388608; "
        "rank 3: all_reduce of 39 x float32 ring average=True ranks_per_node=None block_bytes=8388608"
    )
    assert "rank 0: all_reduce of 40 x float32 tree " in pattern
    assert "ranks 1, 3, 5, 7: all_reduce of 40 x float64" in dtype
    assert "rank 8: broadcast of 40 x float32 root=8" in root
    assert "rank 8: all_gather of 18 x float32" in operation


def calls_without_a_check(is_checked: bool) -> tuple[list[float], int]:
    """Return the sums of two calls, and how often ranks have compared them."""
    tensor, comparisons = torch.ones(40), []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(operations, "check_agreement", lambda *arguments: comparisons.append(arguments))
        for _ in range(2):
            all_reduce(tensor, is_checked=is_checked)
    return tensor.unique().tolist(), len(comparisons)


@pytest.mark.parametrize(("is_checked", "comparisons"), [(True, 2), (False, 0)])
def test_calls_are_compared_unless_the_caller_knows_that_they_agree(is_checked: bool, comparisons: int) -> None:
    by_rank = on_ranks(f"{HERE}:calls_without_a_check", ranks=WORLD, is_checked=is_checked)
    assert by_rank == [([float(WORLD**2)], comparisons)] * WORLD


@pytest.mark.parametrize(
    ("adding_steps", "slot_bytes", "slots"),
    [(6, 1 << 20, 6), (6, 4 << 20, 4), (6, 64 << 20, 2), (4, 0, 4), (1, 1, 1), (0, 0, 1)],
)
def test_as_many_steps_are_received_early_as_memory_allows(adding_steps: int, slot_bytes: int, slots: int) -> None:
    assert count_slots(adding_steps, slot_bytes) == slots


def test_only_steps_that_add_wait_for_memory() -> None:
    is_adding = [True, True, True, False, False, False]
    assert list_stops(is_adding, slots=3) == [6] * 6
    assert list_stops(is_adding, slots=2) == [2, 6, 6, 6, 6, 6]
    assert list_stops([True, False, True], slots=1) == [2, 3, 3]


def test_chunks_of_hierarchical_stay_small_on_few_ranks() -> None:
    assert [choose_block_bytes("hierarchical", ranks) >> 10 for ranks in (4, 8, 64)] == [1024, 512, 256]
    assert choose_block_bytes("ring", 4) == 8 << 20


def add_and_receive_in_a_step() -> list[float]:
    """Return the tensor after a step in which rank 1 gets two messages of rank 0, of which it adds the first."""
    rank = dist.get_rank()
    tensor = torch.tensor([1.0, 2.0]) * 10**rank
    first, second = ("add", "receive") if rank else ("send", "send")
    step = (Transfer(first, 1 - rank, 0, 1), Transfer(second, 1 - rank, 1, 2))
    run_schedule(tensor, Schedule(2, (step,), chunk_interval=1), [[(0, 1), (1, 2)]], None)
    return tensor.tolist()


def test_messages_of_a_step_are_received_in_the_order_in_which_they_are_sent() -> None:
    assert on_ranks(f"{HERE}:add_and_receive_in_a_step", ranks=2) == [[1.0, 2.0], [11.0, 2.0]]


def test_large_tensors_do_not_deadlock() -> None:
    assert_equal_on_all_ranks(on_ranks(f"{HERE}:large_sum_digests", ranks=WORLD))


def test_special_tensors_are_reduced_in_place() -> None:
    on_ranks(f"{HERE}:special_tensors", ranks=WORLD)


def test_calls_that_cannot_work_are_refused_with_the_reason() -> None:
    assert on_ranks(f"{HERE}:refusals", ranks=WORLD)[1] == [
        "pattern is 'star', but must be one of ring, halving_doubling, tree, hierarchical",
        "pattern 'hierarchical' needs ranks_per_node",
        "ranks_per_node has no effect with pattern 'ring', only with 'hierarchical'",
        "ranks_per_node is 2, but must divide the number of ranks, 9",
        "average needs a floating-point tensor, not torch.int32: sum it and divide the result",
        "output has 2 elements: 9 of them have 18, not 4",
        "tensor has dtype torch.float32, the other tensor torch.float64",
        "root is 9, but the group has the ranks 0 to 8",
        "block_bytes is 0, but must be at least 1",
        "the tensor is on meta, but gloo sends tensors on cpu only",
        "output is on meta, the other tensor on cpu",
        "rank 1 is not in the group",
    ]
