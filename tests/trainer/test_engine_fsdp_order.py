"""Ranks that run different blocks fail with a message that names them, instead of mixing up their weights."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from tests.trainer.ranks import RanksError, on_ranks
from tests.trainer.test_engine_fsdp_models import differentiate, spread, take_gradient
from trainer.engines.block_order import ALL_GATHER, ALL_REDUCE, END, REDUCE_SCATTER, describe_difference


class Branching(nn.Module):
    """Layers of one size; a rank leaves out one of them if the first value of its input is negative."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.first = nn.Linear(4, 4)
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        skips = bool(x[0, 0] < 0)
        x = self.first(x)
        for index, layer in enumerate(self.layers):
            if not (skips and index == 1):
                x = layer(x)
        return x


FIX = "let all ranks call the same layers in the same order, or set parallel.strategy to ddp"
# The rank that left out block 2 has nothing to gather again before it reduces block 3.
PARTING = "all-gather of block 2 (layers.1)", "reduce-scatter of block 3 (layers.2)"


@pytest.mark.parametrize(("steps", "options"), [(0, {}), (2, {"check_blocks": True})])
def test_a_layer_that_one_rank_leaves_out_is_named(steps: int, options: dict[str, Any]) -> None:
    """In the first step always, and after others if the setting is on."""
    with pytest.raises(RanksError) as error:
        on_ranks(f"{__name__}:branch", ranks=3, steps=steps, options=options)
    here, there = PARTING
    expected = f"BlockOrderError: ranks run different blocks (ranks 0, 2: {here}; rank 1: {there}), but they exchange"
    # All ranks raise it.
    assert str(error.value).count(expected) == 3
    assert str(error.value).count(FIX) == 3


def branch(steps: int, options: dict[str, Any]) -> None:
    engine = spread(Branching(), **options)
    inputs = torch.ones(1, 4)
    for _ in range(steps):
        differentiate(engine, inputs)
    differentiate(engine, -inputs if dist.get_rank() == 1 else inputs)


@pytest.mark.parametrize("count", [1, 2])
def test_a_replica_that_leaves_out_a_layer_is_named(count: int) -> None:
    """Ranks 2 and 3 are a replica, and both leave out the same layer: nothing differs within a replica.

    Replicas exchange gradients in the last of the step's micro-batches only.
    """
    with pytest.raises(RanksError) as error:
        on_ranks(f"{__name__}:branch_replica", ranks=4, count=count)
    here, there = "all-reduce of block 2 (layers.1)", "all-reduce of block 1 (layers.0)"
    for first, second in ((0, 2), (1, 3)):
        assert f"ranks run different blocks (rank {first}: {here}; rank {second}: {there})" in str(error.value)


def branch_replica(count: int) -> None:
    """Run a step of `count` micro-batches, each of one sample."""
    engine = spread(Branching(), strategy="hsdp", shard=2)
    inputs = torch.ones(count, 4)
    batch = {"inputs": -inputs if dist.get_rank() >= 2 else inputs, "targets": torch.zeros(count)}
    engine.forward_backward(batch, lambda outputs, _: outputs.sum(), 1, None)


def test_ranks_that_run_the_same_blocks_pass_the_check() -> None:
    """All of them may leave out a layer."""
    assert on_ranks(f"{__name__}:count_comparisons", ranks=2) == [[0, 0, 0], [0, 0, 0]]


def count_comparisons() -> list[int]:
    """Return how often ranks were compared in the second, third and fourth step, the last without a layer."""
    engine: Any = spread(Branching())
    counts = []
    original = dist.all_gather_into_tensor
    calls: list[int] = []

    def count(received: torch.Tensor, sent: torch.Tensor, **options: Any) -> Any:
        calls.extend([1] if sent.dtype == torch.int64 else [])
        return original(received, sent, **options)

    dist.all_gather_into_tensor = count
    try:
        for sign in (1, 1, 1, -1):
            calls.clear()
            differentiate(engine, sign * torch.ones(1, 4))
            counts.append(len(calls))
    finally:
        dist.all_gather_into_tensor = original
    assert counts[0] > 0
    return counts[1:]


@pytest.mark.nightly_cases("reduce_scatter_tensor-reduce-scatter", "all_gather_into_tensor-all-gather")
@pytest.mark.parametrize(
    ("function", "collective"),
    [
        ("all_gather_into_tensor", "all-gather"),
        ("reduce_scatter_tensor", "reduce-scatter"),
        ("all_reduce", "all-reduce"),
    ],
)
def test_an_error_of_a_collective_names_its_block(function: str, collective: str) -> None:
    """Block 2 of 0 to 4 is the third, forward and backward."""
    with pytest.raises(RanksError) as error:
        on_ranks(f"{__name__}:fail_in_third_wait", ranks=4, function=function)
    expected = f"It was the {collective} of block 2 (layers.1). If other ranks name another block, they"
    assert str(error.value).count("RuntimeError: connection closed by peer") == 4
    assert str(error.value).count(expected) == 4


class FailingWork:
    """A collective on its way, which ends with an error if it is the third one that is waited for."""

    def __init__(self, work: Any, waits: list[Any]) -> None:
        self._work, self._waits = work, waits

    def wait(self) -> None:
        self._work.wait()
        self._waits.append(self._work)
        if len(self._waits) == 3:
            raise RuntimeError("connection closed by peer")


def fail_in_third_wait(function: str) -> None:
    """Let the third wait for a collective of blocks fail; ranks that compare blocks wait in the call itself."""
    engine = spread(Branching(), strategy="hsdp", shard=2)
    original = getattr(dist, function)
    waits: list[Any] = []

    def start(*args: Any, async_op: bool = False, **options: Any) -> Any:
        work = original(*args, async_op=async_op, **options)
        return FailingWork(work, waits) if async_op else work

    setattr(dist, function, start)
    try:
        differentiate(engine, torch.ones(1, 4))
    finally:
        setattr(dist, function, original)


class Failing(Branching):
    """Layers whose backward pass can fail when all but the first have their gradients."""

    fails = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        if self.fails:
            x.register_hook(raise_error)
        for layer in self.layers:
            x = layer(x)
        return x


def raise_error(_gradient: torch.Tensor) -> None:
    raise ValueError("an error of the model")


@pytest.mark.parametrize(("strategy", "shard"), [("fsdp", 0), ("hsdp", 2)])
def test_what_an_exception_leaves_is_waited_for_in_the_next_step(strategy: str, shard: int) -> None:
    for unfinished, left, gradients, expected in on_ranks(
        f"{__name__}:repeat_after_exception", ranks=4, strategy=strategy, shard=shard
    ):
        assert unfinished > 0
        assert left == 0
        assert gradients == expected


class WatchedWork:
    """A collective on its way, which is in a list until it has been waited for."""

    def __init__(self, work: Any, running: list[Any]) -> None:
        self._work, self._running = work, running
        running.append(self)

    def wait(self) -> None:
        self._work.wait()
        self._running.remove(self)


def repeat_after_exception(strategy: str, shard: int) -> tuple[int, int, list[float], list[float]]:
    """Return averages that nobody waits for after an exception and after the next step, and the step's gradients."""
    model = Failing()
    engine, undisturbed = (spread(each, strategy=strategy, shard=shard) for each in (model, Failing()))
    inputs = torch.ones(2, 4)
    differentiate(undisturbed, inputs)
    running: list[Any] = []

    def watch(original: Any, *args: Any, async_op: bool = False, **options: Any) -> Any:
        work = original(*args, async_op=async_op, **options)
        return WatchedWork(work, running) if async_op else work

    with pytest.MonkeyPatch.context() as patch:
        for name in ("reduce_scatter_tensor", "all_reduce"):
            patch.setattr(dist, name, partial(watch, getattr(dist, name)))
        model.fails = True
        with pytest.raises(ValueError, match="an error of the model"):
            differentiate(engine, inputs)
        unfinished, model.fails = len(running), False
        for _, weight in engine.named_parameters():
            weight.grad = None
        differentiate(engine, inputs)
    return unfinished, len(running), collect_gradients(engine), collect_gradients(undisturbed)


def collect_gradients(engine: Any) -> list[float]:
    return [value for _, weight in engine.named_parameters() for value in take_gradient(weight).flatten().tolist()]


NAMES = ["Model", "embed", "layers.0"]


@pytest.mark.parametrize(
    ("actions", "expected"),
    [
        ([(ALL_GATHER, 1), (ALL_GATHER, 1)], ""),
        (
            [(ALL_GATHER, 1), (REDUCE_SCATTER, 1)],
            "rank 4: all-gather of block 1 (embed); rank 6: reduce-scatter of block 1 (embed)",
        ),
        (
            [(ALL_REDUCE, 2), (END, 0), (ALL_REDUCE, 2)],
            "ranks 4, 8: all-reduce of block 2 (layers.0); rank 6: end of the micro-batch",
        ),
    ],
)
def test_differences_in_words(actions: list[tuple[int, int]], expected: str) -> None:
    message = describe_difference(actions, [4, 6, 8][: len(actions)], NAMES)
    assert message == (
        f"ranks run different blocks ({expected}), but they exchange weights and gradients block by block; {FIX}"
        if expected
        else ""
    )
