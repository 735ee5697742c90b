"""muster's own sharded data parallelism has the bits of torch's fully_shard, and gathers no more than it needs."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch

from tests.trainer.curves import config_of, make_step
from tests.trainer.ranks import RanksError, on_ranks
from tests.trainer.strategies import FAMILIES, settings
from tests.trainer.test_engine_ddp import MODELS, STEPS, train
from tests.trainer.test_own_models import TRAINED, TRAINED_AT_NIGHT, train_on
from tests.trainer.test_parallel_engines import SHALLOW
from tests.trainer.test_parallel_traffic import MICRO_BATCHES, NORM, PARTS
from trainer.config.load import from_dict
from trainer.engines.flat_layout import count_values, plan_parts
from trainer.parallel.evaluation_mode import evaluation_mode
from trainer.step import Step

PRECISIONS = ("precision=fp32", "precision=bf16", "precision=fp16", "parallel.reduce=bf16")
# The strategy, its ranks and the micro-batches of a rank.
STRATEGIES = {
    "fsdp": ("fsdp", 2, 1),
    "fsdp, 3 ranks": ("fsdp", 3, 1),
    "fsdp, 4 ranks": ("fsdp", 4, 2),
    "zero 2": ("fsdp zero=2", 2, 2),
    "zero 1": ("fsdp zero=1", 2, 2),
    "fsdp, deferred": ("fsdp accumulate=defer", 4, 2),
    "hsdp": ("hsdp shard=2", 4, 2),
    "hsdp, zero 1": ("hsdp shard=2 zero=1", 4, 2),
    "hsdp, all averaged": ("hsdp shard=2 accumulate=sync", 4, 2),
}
TABLE = [
    (model, precision, strategy)
    for model, precision, strategy in product(MODELS, PRECISIONS, STRATEGIES)
    # Refused: micro-batches would be summed in bf16.
    if not (precision == "parallel.reduce=bf16" and strategy == "fsdp, deferred")
]
DAILY = [
    ("llama", "precision=bf16", "zero 1"),
    ("llama", "precision=fp32", "hsdp"),
    ("gpt2", "precision=fp32", "fsdp, 4 ranks"),
    ("resnet", "precision=bf16", "fsdp"),
    ("llama, LoRA", "precision=fp32", "zero 2"),
]


# By day fewer steps, because they are slow.
@pytest.mark.nightly_cases("resnet-precision=bf16-fsdp-5", "gpt2-precision=fp32-fsdp, 4 ranks-5")
@pytest.mark.parametrize(
    ("model", "precision", "strategy", "steps"),
    [*((*cell, 5) for cell in DAILY), *(pytest.param(*cell, STEPS, marks=pytest.mark.nightly) for cell in TABLE)],
)
def test_every_bit_is_that_of_torch(model: str, precision: str, strategy: str, steps: int) -> None:
    """Gradients lie in the same places of the same messages, so the backend sums them in the same order."""
    row, (name, ranks, count) = MODELS[model], STRATEGIES[strategy]
    base = [*row.settings, *settings(name), precision, f"batch.size={ranks * row.micro * count}"]
    compare_engines(row.preset, base, ranks=ranks, micro=row.micro, steps=steps)


@pytest.mark.nightly
@pytest.mark.parametrize(
    "option",
    [
        "parallel.recompute=full",
        "parallel.recompute=selective",
        "parallel.context=2",
        "parallel.prefetch=0",
        "parallel.prefetch=3",
        "optimizer.name=muon",
        "optimizer.moments=bf16",
        "compile.mode=blocks compile.backend=aot_eager",
        "precision=bf16 fp8.scaling=tensor",
        "precision=bf16 fp8.scaling=delayed",
    ],
)
def test_options_have_the_bits_of_torch(option: str) -> None:
    base = [*FAMILIES["llama"].settings, *settings("fsdp"), "model.layers=3", *option.split()]
    compare_engines("tiny-llama", base, ranks=2, micro=2, steps=5)


@pytest.mark.nightly
def test_recomputed_layers_and_rows_that_ranks_do_not_divide_have_the_bits_of_torch() -> None:
    """The heads and rows are odd; the vocabulary leaves the last of 4 ranks without a row."""
    odd = ["model.dim=30", "model.heads=3", "model.kv_heads=1", "model.ffn=7", "model.vocab_size=9"]
    base = [*FAMILIES["llama"].settings, *odd, *settings("fsdp recompute=full"), "batch.size=8"]
    compare_engines("tiny-llama", base, ranks=4, micro=2, steps=5)


def compare_engines(preset: str, base: list[str], *, ranks: int, micro: int, steps: int = STEPS) -> None:
    ours, theirs = (
        train(preset, [*base, f"parallel.engine={engine}"], ranks=ranks, micro=micro, steps=steps)
        for engine in ("muster", "torch")
    )
    assert ours == theirs


# A layer that is called twice, weights that layers share, an output that is no tensor, and a frozen part.
SHAPES_BY_DAY = ("looped", "sharing layers", "returning an object", "partly frozen")


@pytest.mark.nightly_cases("sharing layers")
@pytest.mark.parametrize(
    "shape",
    [
        pytest.param(shape, marks=() if shape in SHAPES_BY_DAY else pytest.mark.nightly)
        for shape in [*TRAINED, *TRAINED_AT_NIGHT]
    ],
)
def test_a_shape_trains_with_the_bits_of_torch(shape: str) -> None:
    ours, theirs = (train_on(2, shape, strategy="fsdp", engine=engine) for engine in ("muster", "torch"))
    assert ours == theirs


def test_a_layer_that_is_not_called_is_named() -> None:
    with pytest.raises(RanksError, match=r"Bypassing uses weights of model.layers.0, model.layers.1, model.layers.2 w"):
        train_on(2, "bypassing", strategy="fsdp", engine="muster")


@pytest.mark.parametrize("ranks", range(1, 10))
def test_ranks_share_the_rows_as_torch_divides_them(ranks: int) -> None:
    tensors = [torch.randn(shape) for shape in ((1,), (5,), (8, 3), (17, 2, 2), (3, 4))]
    parts = plan_parts([tensor.shape for tensor in tensors], ranks)
    rows = torch.zeros(ranks, count_values(parts))
    for part, tensor in zip(parts, tensors, strict=True):
        for place, values in part.pair_rows(rows, tensor):
            place.copy_(values)
        for rank in range(ranks):
            chunks = tensor.chunk(ranks)
            expected = chunks[rank] if rank < len(chunks) else tensor[:0]
            assert torch.equal(part.view_shard(rows[rank], rank), expected)
            assert torch.equal(tensor[part.slice_rows(rank)], expected)
    # As an all-gather and the copy to whole parameters place them.
    sizes = [part.size for part in parts]
    whole = torch.cat([columns.reshape(-1) for columns in rows.split(sizes, dim=1)])
    assert all(torch.equal(part.view_whole(whole, ranks), tensor) for part, tensor in zip(parts, tensors, strict=True))


# The last part, norm with head, stays whole from the end of forward to the start of backward.
GATHERS = 2 * PARTS - 1
TRAFFIC = {
    "fsdp zero=1": {"_allgather_base_": PARTS, "_reduce_scatter_base_": PARTS, "allreduce_": NORM},
    "fsdp zero=2": {"_allgather_base_": PARTS, "_reduce_scatter_base_": PARTS * MICRO_BATCHES, "allreduce_": NORM},
    "fsdp zero=3": {
        "_allgather_base_": GATHERS * MICRO_BATCHES,
        "_reduce_scatter_base_": PARTS * MICRO_BATCHES,
        "allreduce_": NORM,
    },
    "hsdp shard=2": {
        "_allgather_base_": GATHERS * MICRO_BATCHES,
        "_reduce_scatter_base_": PARTS * MICRO_BATCHES,
        "allreduce_": PARTS + NORM,
    },
}


@pytest.mark.nightly_cases("fsdp zero=1", "hsdp shard=2")
@pytest.mark.parametrize("strategy", TRAFFIC)
def test_a_step_runs_the_expected_collectives(strategy: str) -> None:
    config = config_of("tiny-llama", [*SHALLOW, *settings(strategy), "parallel.engine=muster"])
    expected = {f"c10d::{name}": count for name, count in TRAFFIC[strategy].items()}
    # In the first step, ranks compare the block of each collective, and that they end each micro-batch together.
    expected["c10d::_allgather_base_"] += sum(TRAFFIC[strategy].values()) - NORM + MICRO_BATCHES
    for calls in on_ranks("tests.trainer.curves:count_collectives", config=config, micro=1):
        assert calls == expected


def test_layers_are_gathered_ahead_and_reduced_during_backward() -> None:
    config = config_of("tiny-llama", [*SHALLOW, *settings("fsdp engine=muster")])
    for events in on_ranks(f"{__name__}:record_step", ranks=2, config=config):
        blocks = ("embed", "layers.0", "layers.1", "norm")
        # A block is on its way before the one in front of it runs.
        assert events.index("gather layers.1") < events.index("forward layers.0")
        assert events.index("gather norm") < events.index("forward layers.1")
        backward = events[events.index("forward norm") :]
        assert backward.index("gather layers.0") < backward.index("reduce layers.1")
        reduced = [event for event in backward if event.startswith("reduce")]
        assert reduced == [f"reduce {name}" for name in blocks[::-1]]
        # When a block is reduced, the one in front of it still has its backward pass to run.
        assert backward.index("reduce norm") < backward.index("free layers.1")


def record_step(config: dict[str, Any]) -> list[str]:
    """Return the events of a step on a rank, in their order."""
    step = make_step(from_dict(config))
    engine: Any = step.engine
    events: list[str] = []
    names = {module: name for name, module in engine.modules[0].named_modules()}
    for block, gradients in zip(engine._passes.blocks, engine._gradients, strict=True):
        name = names[block.modules[0]]
        record(events, f"gather {name}", block, "begin_gather", lambda block=block: block._gather is None)
        record(events, f"free {name}", block, "free", lambda block=block: block.is_whole)
        record(events, f"reduce {name}", gradients, "reduce", lambda: True)
        block.modules[0].register_forward_pre_hook(lambda *_, name=name: events.append(f"forward {name}"))
    run(step, 1)
    return events


def record(events: list[str], event: str, owner: Any, method: str, is_real: Any) -> None:
    original = getattr(owner, method)

    def call(*args: Any, **kwargs: Any) -> Any:
        if is_real() and not (method == "begin_gather" and owner.is_whole):
            events.append(event)
        return original(*args, **kwargs)

    setattr(owner, method, call)


@pytest.mark.parametrize("zero", [1, 2, 3])
def test_nothing_stays_whole_after_a_step_and_an_evaluation(zero: int) -> None:
    config = config_of("tiny-llama", [*SHALLOW, *settings(f"fsdp engine=muster zero={zero}")])
    # In between micro-batches, all parts are whole under ZeRO 1 and 2, and none under ZeRO 3.
    between = 0 if zero == 3 else PARTS
    for counts in on_ranks(f"{__name__}:count_whole_blocks", ranks=2, config=config):
        assert counts == [between, 0, 0]


def count_whole_blocks(config: dict[str, Any]) -> list[int]:
    """Return the blocks with memory for whole parameters between micro-batches, after a step, and after evaluation."""
    step = make_step(from_dict(config))
    engine: Any = step.engine
    counts = []

    def count(*_: Any) -> None:
        memories = [block._memory.nbytes() for block in engine._passes.blocks]
        assert [bool(size) for size in memories] == [block.is_whole for block in engine._passes.blocks]
        counts.append(sum(block.is_whole for block in engine._passes.blocks))

    engine.before_micro_batch = count
    run(step, 2)
    count()
    with evaluation_mode(engine):
        engine.measure(make_batch(4), lambda outputs, _: outputs.sum(), 2)
    count()
    return counts


def test_after_an_abandoned_step_the_next_has_the_bits_of_a_fresh_one() -> None:
    """Under accumulate=defer, an abandoned step leaves whole gradients behind; under ZeRO 2, whole parameters."""
    for strategy in ("fsdp engine=muster zero=2", "fsdp engine=muster accumulate=defer"):
        config = config_of("tiny-llama", [*SHALLOW, *settings(strategy)])
        for fresh, repeated in on_ranks(f"{__name__}:abandon_a_step", ranks=2, config=config):
            assert repeated == fresh


def abandon_a_step(config: dict[str, Any]) -> list[list[float]]:
    """Return the losses and norms of two steps in a run, and in one with an abandoned step between them."""
    results = []
    for abandons in (False, True):
        step = make_step(from_dict(config))
        losses = [float(run(step, 2).loss)]
        if abandons:
            step.engine.before_micro_batch = abandon
            with pytest.raises(ZeroDivisionError):
                run(step, 2)
            step.engine.before_micro_batch = lambda *_: None
            step.optimizer.zero_gradients()
        result = run(step, 2)
        results.append([*losses, float(result.loss), float(result.grad_norm)])
    return results


def abandon(_index: int, _count: int) -> None:
    raise ZeroDivisionError


@pytest.mark.parametrize("strategy", ["fsdp", pytest.param("hsdp shard=2 zero=2", marks=pytest.mark.nightly)])
def test_a_resumed_run_changes_no_bit(strategy: str) -> None:
    config = config_of("tiny-llama", [*SHALLOW, *settings(strategy), "parallel.engine=muster"])
    assert on_ranks("tests.trainer.test_parallel_ddp:compare_resumed", config=config) == [True] * 4


def test_one_rank_has_the_bits_of_a_single_process() -> None:
    base = [*FAMILIES["llama"].settings, "optimizer.clip_norm=0.3"]
    strategies = ("fsdp engine=muster", "single")
    ours, single = (train("tiny-llama", [*base, *settings(name)], ranks=1, micro=2) for name in strategies)
    assert ours == single


def make_batch(size: int) -> dict[str, torch.Tensor]:
    tokens = torch.arange(size * 17).view(size, 17) % 64
    return {"inputs": tokens[:, :-1], "targets": tokens[:, 1:]}


def run(step: Step, count: int) -> Any:
    return step.run(make_batch(count), 1)
