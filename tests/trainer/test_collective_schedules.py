"""Schedules of collectives, played for all ranks at once with symbolic sums: no rank is started."""

from __future__ import annotations

import math
import random
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise

import pytest

from trainer.collectives import broadcast, double_tree, halving_doubling, hierarchical, ring
from trainer.collectives.exchange_plan import choose_interval
from trainer.collectives.schedule import Schedule, Transfer, plan_block_chunks, plan_chunks, split_span

RANKS = range(1, 18)
Scheduler = Callable[[int, int], Schedule]
# A sum is the set of the two things that were added, so that equal sums are equal bit for bit: floating-point addition
# is commutative, but not associative. A set of one is the contribution of that rank.
Sum = frozenset


def hierarchical_over(ranks_per_node: int) -> Scheduler:
    return partial(hierarchical.schedule_all_reduce, ranks_per_node=ranks_per_node)


def all_reduces() -> Iterator[tuple[str, Scheduler, int]]:
    for ranks in RANKS:
        yield "ring", ring.schedule_all_reduce, ranks
        yield "halving_doubling", halving_doubling.schedule_all_reduce, ranks
        yield "tree", double_tree.schedule_all_reduce, ranks
        for per_node in (size for size in range(1, ranks + 1) if ranks % size == 0):
            yield f"hierarchical_{per_node}", hierarchical_over(per_node), ranks


ALL_REDUCES = [pytest.param(scheduler, ranks, id=f"{name}-{ranks}") for name, scheduler, ranks in all_reduces()]


def schedules_of(scheduler: Scheduler, ranks: int) -> list[Schedule]:
    return [scheduler(rank, ranks) for rank in range(ranks)]


def play(schedules: list[Schedule], blocks: list[list[Sum]]) -> list[list[Sum]]:
    """Return the blocks of every rank after all steps, and check that every step fits together."""
    assert len({len(schedule.steps) for schedule in schedules}) == 1
    assert {schedule.blocks for schedule in schedules} == {len(held) for held in blocks}
    for step in range(len(schedules[0].steps)):
        messages: dict[tuple[int, int], list[tuple[int, int, list[Sum]]]] = {}
        for rank, schedule in enumerate(schedules):
            sent = [range(t.first, t.stop) for t in schedule.steps[step] if t.action == "send"]
            for transfer in schedule.steps[step]:
                span = range(transfer.first, transfer.stop)
                assert transfer.peer != rank
                assert 0 <= transfer.first < transfer.stop <= schedule.blocks
                if transfer.action == "send":
                    content = blocks[rank][transfer.first : transfer.stop]
                    messages.setdefault((rank, transfer.peer), []).append((transfer.first, transfer.stop, content))
                else:
                    assert not any(block in other for block in span for other in sent)
        for rank, schedule in enumerate(schedules):
            for transfer in schedule.steps[step]:
                if transfer.action != "send":
                    first, stop, content = messages[transfer.peer, rank].pop(0)
                    assert (first, stop) == (transfer.first, transfer.stop)
                    _store(blocks[rank], transfer, content)
        assert not any(messages.values()), f"messages that nobody receives in step {step}"
    return blocks


def _store(held: list[Sum], transfer: Transfer, content: list[Sum]) -> None:
    for block, value in zip(range(transfer.first, transfer.stop), content, strict=True):
        assert transfer.action != "add" or held[block] != value
        held[block] = Sum((held[block], value)) if transfer.action == "add" else value


def contributions(value: Sum) -> Counter[int]:
    """Return how often the contribution of each rank is in a sum."""
    if all(isinstance(item, int) for item in value):
        return Counter(value)
    return sum((contributions(item) for item in value), Counter())


def chain(*ranks: int) -> Sum:
    """Return ((x[first] + x[second]) + x[third]) + ..."""
    total = Sum((ranks[0],))
    for rank in ranks[1:]:
        total = Sum((total, Sum((rank,))))
    return total


def reduce_all(scheduler: Scheduler, ranks: int) -> list[list[Sum]]:
    schedules = schedules_of(scheduler, ranks)
    return play(schedules, [[Sum((rank,))] * schedules[0].blocks for rank in range(ranks)])


@pytest.mark.parametrize(("scheduler", "ranks"), ALL_REDUCES)
def test_all_reduce_adds_each_contribution_once_and_all_ranks_get_the_same_sum(scheduler: Scheduler, ranks: int):
    blocks = reduce_all(scheduler, ranks)
    assert all(held == blocks[0] for held in blocks)
    for value in blocks[0]:
        assert contributions(value) == Counter(range(ranks))


@pytest.mark.parametrize(("scheduler", "ranks"), ALL_REDUCES)
def test_messages_that_arrive_before_their_step_change_nothing(scheduler: Scheduler, ranks: int):
    schedules = schedules_of(scheduler, ranks)
    blocks = [[Sum((rank,))] * schedules[0].blocks for rank in range(ranks)]
    assert play_in_any_order(schedules, blocks, random.Random(ranks)) == reduce_all(scheduler, ranks)


@pytest.mark.parametrize(("scheduler", "ranks"), ALL_REDUCES)
def test_nothing_is_added_to_a_block_that_has_been_sent(scheduler: Scheduler, ranks: int):
    for schedule in schedules_of(scheduler, ranks):
        sent: set[int] = set()
        for step in schedule.steps:
            sent |= {block for each in step if each.action == "send" for block in range(each.first, each.stop)}
            added = {block for each in step if each.action == "add" for block in range(each.first, each.stop)}
            assert not sent & added


@pytest.mark.parametrize(
    ("schedule", "chunks", "interval"),
    [
        pytest.param(ring.schedule_all_reduce(0, 4), 2, 0, id="both chunks of a ring start together"),
        pytest.param(ring.schedule_all_reduce(0, 4), 3, 3, id="a third chunk waits until the first has ended"),
        pytest.param(hierarchical.schedule_all_reduce(0, 4, 2), 2, 1, id="chunks use different links"),
    ],
)
def test_chunks_start_together_only_if_a_ring_has_no_more_of_them(schedule: Schedule, chunks: int, interval: int):
    assert choose_interval(schedule, chunks) == interval


def play_in_any_order(schedules: list[Schedule], blocks: list[list[Sum]], draw: random.Random) -> list[list[Sum]]:
    """Return the blocks of every rank if each is ready for all messages from the start, and any may be slow.

    A message has what its blocks contain when it arrives. What is added waits for its step; the others are stored. A
    rank waits for what it has sent after its last step only, and messages to different peers may overtake each other.
    """
    receives: dict[tuple[int, int], deque[tuple[int, Transfer]]] = defaultdict(deque)
    for rank, schedule in enumerate(schedules):
        for number, step in enumerate(schedule.steps):
            for transfer in step:
                if transfer.action != "send":
                    receives[transfer.peer, rank].append((number, transfer))
    steps = len(schedules[0].steps)
    position = [-1] * len(schedules)
    sent: list[dict[int, deque[Transfer]]] = [defaultdict(deque) for _ in schedules]
    arrived: list[dict[int, list[tuple[Transfer, list[Sum]]]]] = [defaultdict(list) for _ in schedules]
    while any(number < steps for number in position) or any(any(queues.values()) for queues in sent):
        rank = draw.randrange(len(schedules))
        peers = [peer for peer, queue in sent[rank].items() if queue]
        if peers and draw.random() < 0.5:
            transfer = sent[rank][draw.choice(peers)].popleft()
            number, place = receives[rank, transfer.peer].popleft()
            content = blocks[rank][transfer.first : transfer.stop]
            arrived[transfer.peer][number].append((place, content))
            if place.action == "receive":
                _store(blocks[transfer.peer], place, content)
            continue
        own = schedules[rank].steps[position[rank]] if 0 <= position[rank] < steps else ()
        expected = [transfer for transfer in own if transfer.action != "send"]
        here = arrived[rank][position[rank]]
        if position[rank] == steps or len(here) < len(expected):
            continue
        for transfer in expected:
            if transfer.action == "add":
                _store(blocks[rank], *next(each for each in here if each[0] is transfer))
        position[rank] += 1
        for transfer in schedules[rank].steps[position[rank]] if position[rank] < steps else ():
            if transfer.action == "send":
                sent[rank][transfer.peer].append(transfer)
    return blocks


@pytest.mark.parametrize("ranks", RANKS)
def test_reduce_scatter_completes_block_r_on_rank_r_and_all_gather_copies_it(ranks: int):
    schedules = schedules_of(ring.schedule_reduce_scatter, ranks)
    blocks = play(schedules, [[Sum((rank,))] * ranks for rank in range(ranks)])
    for rank in range(ranks):
        assert contributions(blocks[rank][rank]) == Counter(range(ranks))
    gathered = play(schedules_of(ring.schedule_all_gather, ranks), [[Sum((r,))] * ranks for r in range(ranks)])
    assert gathered == [[Sum((rank,)) for rank in range(ranks)]] * ranks


@pytest.mark.parametrize("ranks", RANKS)
def test_broadcast_copies_the_root_to_all_ranks(ranks: int):
    for root in range(ranks):
        schedules = schedules_of(partial(broadcast.schedule_broadcast, root=root), ranks)
        assert len(schedules[0].steps) == math.ceil(math.log2(ranks))
        assert play(schedules, [[Sum((rank,))] for rank in range(ranks)]) == [[Sum((root,))]] * ranks


def test_sums_have_the_documented_order():
    (blocks, *_) = reduce_all(ring.schedule_all_reduce, 4)
    assert blocks == [chain(1, 2, 3, 0), chain(2, 3, 0, 1), chain(3, 0, 1, 2), chain(0, 1, 2, 3)]

    (blocks, *_) = reduce_all(halving_doubling.schedule_all_reduce, 5)
    assert blocks == [Sum((Sum((chain(0, 4), Sum((1,)))), chain(2, 3)))] * 4

    (blocks, *_) = reduce_all(double_tree.schedule_all_reduce, 3)
    assert blocks == [chain(1, 0, 2), chain(2, 1, 0)]

    (blocks, *_) = reduce_all(hierarchical_over(2), 4)
    assert blocks[0] == Sum((chain(3, 2), chain(1, 0)))


def sent_share(schedule: Schedule, peers: range = range(100)) -> float:
    """Return the share of the tensor that a rank sends to some peers."""
    transfers = [transfer for step in schedule.steps for transfer in step]
    sizes = [t.stop - t.first for t in transfers if t.action == "send" and t.peer in peers]
    return sum(sizes) / schedule.blocks


@pytest.mark.parametrize("ranks", RANKS)
def test_steps_and_bytes_are_the_documented_ones(ranks: int):
    for schedule in schedules_of(ring.schedule_all_reduce, ranks):
        assert len(schedule.steps) == 2 * (ranks - 1)
        assert sent_share(schedule) == pytest.approx(2 * (ranks - 1) / ranks)

    power = 2 ** math.floor(math.log2(ranks))
    for rank, schedule in enumerate(schedules_of(halving_doubling.schedule_all_reduce, ranks)):
        assert len(schedule.steps) == 2 * math.log2(power) + (2 if ranks > power else 0)
        folded = 1 if rank + power < ranks else 0
        assert sent_share(schedule) == (2 * (power - 1) / power + folded if rank < power else 1)

    for schedule in schedules_of(double_tree.schedule_all_reduce, ranks):
        assert len(schedule.steps) == 2 * math.floor(math.log2(ranks))
        assert sent_share(schedule) <= 2


@pytest.mark.parametrize(("nodes", "per_node"), [(1, 4), (2, 2), (2, 8), (3, 3), (4, 1), (4, 4)])
def test_hierarchical_sends_only_a_share_of_the_tensor_to_other_nodes(nodes: int, per_node: int):
    for rank, schedule in enumerate(schedules_of(hierarchical_over(per_node), nodes * per_node)):
        here = range(rank // per_node * per_node, (rank // per_node + 1) * per_node)
        assert len(schedule.steps) == 2 * (per_node - 1) + 2 * (nodes - 1)
        inside = sent_share(schedule, here)
        assert inside == pytest.approx(2 * (per_node - 1) / per_node)
        assert sent_share(schedule) - inside == pytest.approx(2 * (nodes - 1) / nodes / per_node)


@pytest.mark.parametrize("ranks", RANKS)
def test_every_rank_is_a_leaf_in_at_least_one_tree(ranks: int):
    for rank in range(ranks):
        first, second = (double_tree.find_place((rank - shift) % ranks, ranks) for shift in range(2))
        assert ranks == 1 or not first.children or not second.children


def test_nodes_of_different_sizes_are_refused():
    with pytest.raises(ValueError, match="ranks_per_node is 4, but must divide the number of ranks, 6"):
        hierarchical.schedule_all_reduce(0, 6, ranks_per_node=4)


@pytest.mark.parametrize("elements", [0, 1, 7, 64, 65, 1000])
@pytest.mark.parametrize("blocks", [1, 2, 5, 9])
@pytest.mark.parametrize("block_elements", [1, 4, 1000])
def test_chunks_cover_every_element_once(elements: int, blocks: int, block_elements: int):
    for plan in (plan_chunks, plan_block_chunks):
        chunks = plan(elements, blocks, block_elements)
        assert {len(chunk) for chunk in chunks} == {blocks}
        spans = [span for chunk in chunks for span in chunk]
        assert sorted(i for start, stop in spans for i in range(start, stop)) == list(range(elements))
        assert all(stop - start <= block_elements for start, stop in spans)
    for chunk in plan_chunks(elements, blocks, block_elements):
        assert all(before[1] == after[0] for before, after in pairwise(chunk))
    blocks_of_ranks = list(zip(*plan_block_chunks(elements, blocks, block_elements), strict=True))
    assert [(spans[0][0], spans[-1][1]) for spans in blocks_of_ranks] == split_span(0, elements, blocks)
