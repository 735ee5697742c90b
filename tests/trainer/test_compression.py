"""Compressed averages on 1 to 9 gloo ranks: equal on all ranks, and nothing is lost but what a method says."""

from __future__ import annotations

import hashlib
import math
from functools import cache
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.trainer.ranks import on_ranks
from trainer.compression import quantized, topk
from trainer.compression.powersgd import average_powersgd, make_query
from trainer.compression.quantized import average_quantized
from trainer.compression.randomk import average_randomk, draw_positions
from trainer.compression.topk import average_topk, select_largest
from trainer.compression.wire import Wire, count_all_reduce_bytes

WORLD = 9
HERE = "tests.trainer.test_compression"
METHODS = ("topk", "randomk", "powersgd", "bf16", "fp8", "int8")
SIZES = (1, 2, 257, 4099, 65_536, 140_003)
FEW_SIZES = (1, 7, 300)
RATIO = 0.01


def average(method: str, gradient: Any, residual: Any, wire: Wire) -> Any:
    """Replace the gradient by its average and return what this rank has left over."""
    if method == "topk":
        return average_topk(gradient, residual, wire, RATIO)
    if method == "randomk":
        return average_randomk(gradient, residual, wire, RATIO, seed=5)
    if method == "powersgd":
        shapes = split_into_shapes(gradient.numel())
        queries = [make_query(shape, 2, seed) for seed, shape in enumerate(shapes)]
        return average_powersgd(gradient, residual, queries, shapes, wire)[0]
    return average_quantized(gradient, wire, method)


def split_into_shapes(size: int) -> list[tuple[int, ...]]:
    """Return shapes with so many elements together: a square, a thin matrix of three dimensions and a vector."""
    width = math.isqrt(size // 2)
    depth = (size - width * width) // 6
    shapes: list[tuple[int, ...]] = [(width, width), (2, depth, 3), (size - width * width - 6 * depth,)]
    return [shape for shape in shapes if math.prod(shape)]


@cache
def group_of(ranks: int) -> Any:
    return dist.new_group(sorted((5 + 2 * number) % WORLD for number in range(ranks)))


def make_gradient(size: int, rank: int, seed: int = 0) -> Any:
    """Return elements of very different magnitudes."""
    generator = torch.Generator().manual_seed(1000 * seed + rank)
    return torch.randn(size, generator=generator) * torch.rand(size, generator=generator).pow(6)


def digest(tensor: Any) -> str:
    return hashlib.sha256(tensor.contiguous().view(torch.uint8).numpy().tobytes()).hexdigest()


def check_averages(method: str) -> list[str]:
    """Average gradients of all sizes on all numbers of ranks, check what was left over and return digests."""
    digests = []
    for ranks in range(1, WORLD + 1):
        group = group_of(ranks)
        for size in (*FEW_SIZES, *([66_000] if ranks == WORLD else [])):
            if dist.get_rank(group) < 0:
                digests.append("")
                continue
            gradient, residual = make_gradient(size, dist.get_rank()), make_gradient(size, dist.get_rank(), seed=1)
            if method in quantized._DTYPES:
                residual.zero_()
            result = gradient.clone()
            left_over = average(method, result, residual, Wire(group))
            # What all ranks were to send is either in the result or left over.
            sent = (gradient + residual - left_over).double()
            dist.all_reduce(sent, group=group)
            largest = (gradient + residual).abs().max()
            dist.all_reduce(largest, op=dist.ReduceOp.MAX, group=group)
            # Only the second rounding of a quantised average, relative to the largest element of a block, is in no sum.
            steps = {"bf16": 2**-8, "fp8": 2**-4, "int8": 1 / 254}.get(method, 1e-5)
            assert (result.double() - sent / ranks).abs().max() <= 1.01 * steps * largest, (ranks, size)
            digests.append(digest(result))
    return digests


@pytest.mark.parametrize("method", METHODS)
def test_all_ranks_get_the_same_average_and_nothing_is_lost(method: str) -> None:
    for case in zip(*on_ranks(f"{HERE}:check_averages", ranks=WORLD, method=method), strict=True):
        assert len({result for result in case if result}) == 1


def average_bad_values(method: str) -> list[tuple[float, int, bool]]:
    """Return whether the results are finite for a NaN or an infinity anywhere in the gradient of one rank."""
    results = []
    for value in (float("nan"), float("inf"), -float("inf")):
        for place in (0, 20_000, 69_999):
            gradient = make_gradient(70_000, dist.get_rank())
            if dist.get_rank() == 1:
                gradient[place] = value
            average(method, gradient, torch.zeros(70_000), Wire())
            results.append((value, place, bool(gradient.isfinite().all())))
    return results


@pytest.mark.parametrize("method", METHODS)
def test_a_bad_value_of_one_rank_reaches_the_result_of_all(method: str) -> None:
    for results in on_ranks(f"{HERE}:average_bad_values", method=method):
        assert [case for case in results if case[2]] == []


def count_bytes(method: str) -> float:
    """Return how many times fewer bytes this rank sends than in an fp32 all-reduce."""
    wire, size = Wire(), 2**20
    average(method, make_gradient(size, 0), torch.zeros(size), wire)
    return count_all_reduce_bytes(4 * size, wire.ranks) / wire.sent_bytes


@pytest.mark.parametrize(
    ("method", "ranks", "fewer"),
    [("topk", 4, 50), ("topk", 2, 100), ("randomk", 4, 99.9), ("bf16", 4, 2), ("fp8", 4, 3.9), ("int8", 4, 3.9)],
)
def test_bytes_on_the_wire(method: str, ranks: int, fewer: float) -> None:
    ratios = on_ranks(f"{HERE}:count_bytes", ranks=ranks, method=method)
    assert all(fewer <= ratio < fewer * 1.02 for ratio in ratios)


def send_for_many_steps(method: str) -> tuple[float, float]:
    """Return the relative error of the mean of all results after one step and after 60 with the same gradient."""
    gradient = make_gradient(3000, dist.get_rank()) + 0.01
    mean = gradient.clone()
    dist.all_reduce(mean)
    mean /= dist.get_world_size()
    residual, total = torch.zeros(3000), torch.zeros(3000)
    queries = [make_query((60, 50), 2, 0)]
    errors = []
    for step in range(60):
        result = gradient.clone()
        if method == "topk":
            residual = average_topk(result, residual, Wire(), 0.1)
        elif method == "randomk":
            residual = average_randomk(result, residual, Wire(), 0.1, step)
        else:
            residual, queries = average_powersgd(result, residual, queries, [(60, 50)], Wire())
        total += result
        errors.append(float((total / (step + 1) - mean).norm() / mean.norm()))
    return errors[0], errors[-1]


@pytest.mark.parametrize("method", ["topk", "randomk", "powersgd"])
def test_error_feedback_sends_everything_in_the_end(method: str) -> None:
    for first, last in on_ranks(f"{HERE}:send_for_many_steps", method=method):
        assert first > 0.2
        assert last < 0.3 * first


@pytest.mark.parametrize("size", SIZES)
def test_a_message_has_the_largest_elements_of_each_block(size: int) -> None:
    values = make_gradient(size, 3)
    positions = select_largest(values, RATIO)
    assert len(set(positions.tolist())) == len(positions)
    for start in range(0, size, topk.BLOCK):
        block = values[start : start + topk.BLOCK]
        inside = positions[(positions >= start) & (positions < start + topk.BLOCK)]
        assert len(inside) == max(1, int(len(block) * RATIO))
        assert values[inside].abs().min() == block.abs().topk(len(inside)).values.min()
    received = torch.zeros(size)
    topk.add_message(received, topk.encode(positions, values[positions].bfloat16()), RATIO)
    expected = torch.zeros(size)
    expected[positions] = values[positions].bfloat16().float()
    assert torch.equal(received, expected)


@pytest.mark.parametrize("ratio", [0.0001, 0.01, 0.3, 0.5])
@pytest.mark.parametrize("size", SIZES)
def test_random_positions_differ_and_every_element_has_its_turn(size: int, ratio: float) -> None:
    drawn = [draw_positions(size, ratio, seed).tolist() for seed in range(3)]
    assert drawn[0] == draw_positions(size, ratio, 0).tolist()
    for positions in drawn:
        assert len(positions) == max(1, int(size * ratio))
        assert sorted(set(positions)) == positions
        assert 0 <= positions[0] <= positions[-1] < size


def test_every_element_is_drawn_about_equally_often() -> None:
    counts = torch.bincount(torch.cat([draw_positions(205, 0.05, seed) for seed in range(5000)]), minlength=205)
    assert counts.min() > 0.7 * 5000 * 10 / 205
    assert counts.max() < 1.3 * 5000 * 10 / 205


@pytest.mark.parametrize("short", ["bf16", "fp8", "int8"])
def test_rounding_is_relative_to_the_largest_element_of_a_block(short: Any) -> None:
    rows = torch.randn(3, 4 * quantized.BLOCK) * torch.tensor([1e-30, 1.0, 1e30]).view(3, 1)
    rows[1, : quantized.BLOCK] = 0
    decoded = quantized.decode(quantized.encode(rows, short), short)
    largest = rows.view(3, -1, quantized.BLOCK).abs().amax(-1, keepdim=True)
    step = {"bf16": 2**-8, "fp8": 2**-4, "int8": 1 / 254}[short]
    errors = (decoded - rows).view(3, -1, quantized.BLOCK).abs()
    assert bool((errors <= 1.001 * step * largest).all())


@pytest.mark.parametrize(("short", "smallest"), [("int8", 1 / 254), ("fp8", 1 / 458_752)])
def test_elements_below_half_a_step_are_lost(short: Any, smallest: float) -> None:
    block = torch.tensor([[1.0, 1.01 * smallest, 0.99 * smallest] + [0.0] * (quantized.BLOCK - 3)])
    decoded = quantized.decode(quantized.encode(block, short), short)[0]
    assert decoded[0] == pytest.approx(1)
    assert decoded[1] == pytest.approx(2 * smallest)
    assert decoded[2] == 0


def test_a_matrix_of_low_rank_is_sent_exactly_after_a_few_steps() -> None:
    """One rank, so that the power iteration is all that happens."""
    [errors] = on_ranks(f"{HERE}:send_low_rank", ranks=1)
    assert errors[-1] < 1e-5


def send_low_rank() -> list[float]:
    generator = torch.Generator().manual_seed(1)
    matrix = torch.randn(40, 2, generator=generator) @ torch.randn(2, 30, generator=generator)
    queries = [make_query((40, 30), 2, 0)]
    errors = []
    for _ in range(4):
        result = matrix.flatten().clone()
        _, queries = average_powersgd(result, torch.zeros(1200), queries, [(40, 30)], Wire())
        errors.append(float((result - matrix.flatten()).norm() / matrix.norm()))
    return errors


@pytest.mark.parametrize(
    ("shape", "is_compressed"),
    [((64,), False), ((64, 64), True), ((4, 4), False), ((8, 3, 3, 3), True), ((2, 99), False)],
)
def test_only_matrices_that_become_smaller_are_compressed(shape: tuple[int, ...], is_compressed: bool) -> None:
    assert (make_query(shape, 2, 0) is not None) == is_compressed


def test_a_matrix_recovers_from_a_gradient_of_zeros() -> None:
    [norm] = on_ranks(f"{HERE}:send_after_zeros", ranks=1)
    assert norm > 0


def send_after_zeros() -> float:
    queries, residual = [make_query((40, 30), 2, 0)], torch.zeros(1200)
    for gradient in (torch.zeros(1200), make_gradient(1200, 0), make_gradient(1200, 0)):
        _, queries = average_powersgd(gradient, residual, queries, [(40, 30)], Wire())
    return float(gradient.norm())
