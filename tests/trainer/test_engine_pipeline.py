"""muster's own pipeline has the bits of torch's, and names what keeps ranks from running together."""

from __future__ import annotations

import datetime
import os
import tempfile
import time
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.trainer.curves import config_of, global_batch, make_step
from tests.trainer.forks import fork_context
from tests.trainer.ranks import RanksError, on_ranks
from tests.trainer.strategies import FAMILIES, UNTIED, settings
from trainer.collectives.exchange import ConnectionLost
from trainer.config.load import from_dict
from trainer.engines.pipeline.split_backward import differentiate_inputs

STEPS = 10
MODEL = (*FAMILIES["llama"].settings, "model.layers=4", "optimizer.clip_norm=0.3")
PRECISIONS = ("fp32", "bf16", "fp16")
# The settings, and the number of ranks.
PAIRS = {
    "alone": ("single pipeline=2", 2),
    "four ranks": ("single pipeline=4", 4),
    "ddp": ("ddp pipeline=2", 4),
    "zero 1": ("fsdp zero=1 pipeline=2", 4),
    "zero 2": ("fsdp zero=2 pipeline=2", 4),
    "zero 3": ("fsdp zero=3 pipeline=2", 4),
    "hsdp": ("hsdp shard=1 pipeline=2", 4),
}
TABLE = [
    (schedule, pair, precision)
    for schedule, pair, precision in product(("gpipe", "1f1b", "interleaved"), PAIRS, PRECISIONS)
    # Four layers are not enough for interleaved stages on four ranks.
    if not (schedule == "interleaved" and pair == "four ranks")
]
DAILY = [
    ("gpipe", "alone", "fp32"),
    ("1f1b", "zero 3", "bf16"),
    ("interleaved", "ddp", "fp32"),
]
SPLIT_DAILY = [("four ranks", "fp32"), ("ddp", "fp16")]


@pytest.mark.nightly_cases("interleaved-ddp-fp32")
@pytest.mark.parametrize(
    ("schedule", "pair", "precision"),
    [pytest.param(*cell, marks=() if cell in DAILY else pytest.mark.nightly) for cell in TABLE],
)
def test_every_bit_is_that_of_torch(schedule: str, pair: str, precision: str) -> None:
    """The same micro-batches are added up in the same order."""
    base = [*MODEL, f"precision={precision}"]
    strategy, ranks = PAIRS[pair]
    ours, theirs = (
        train(base, f"{strategy} schedule={schedule} engine={engine}", ranks=ranks) for engine in ("muster", "torch")
    )
    assert ours == theirs


@pytest.mark.nightly_cases("ddp-fp16")
@pytest.mark.parametrize(
    ("pair", "precision"),
    [
        pytest.param(*cell, marks=() if cell in SPLIT_DAILY else pytest.mark.nightly)
        for cell in product(PAIRS, PRECISIONS)
    ],
)
def test_a_divided_backward_pass_has_the_bits_of_a_whole_one(pair: str, precision: str) -> None:
    compare_schedules([*MODEL, f"precision={precision}"], *PAIRS[pair])


@pytest.mark.parametrize(
    "family",
    [
        "llama, LoRA",
        *(pytest.param(name, marks=pytest.mark.nightly) for name in ("gpt2", "qwen3", "mixtral", "mixtral, LoRA")),
    ],
)
def test_other_models_have_the_same_bits_too(family: str) -> None:
    """Of LoRA's layers most weights are frozen, and a mixture has functions of its own in its graph."""
    row = FAMILIES[family]
    compare_schedules([*row.settings, *UNTIED], "single pipeline=2", 2, row.preset)


@pytest.mark.nightly
@pytest.mark.parametrize("options", ["parallel.recompute=full", "compile.mode=blocks", "parallel.context=2"])
def test_options_of_layers_have_the_bits_of_torch(options: str) -> None:
    base = [*MODEL, options, "compile.backend=aot_eager"] if "compile" in options else [*MODEL, options]
    ranks = 4 if "context" in options else 2
    ours, theirs = (train(base, f"single pipeline=2 engine={engine}", ranks=ranks) for engine in ("muster", "torch"))
    assert ours == theirs


def compare_schedules(base: list[str], strategy: str, ranks: int, preset: str = "tiny-llama") -> None:
    split, whole = (
        train(base, f"{strategy} engine=muster schedule={schedule}", ranks=ranks, preset=preset)
        for schedule in ("zero_bubble", "1f1b")
    )
    assert split == whole


def train(base: list[str], strategy: str, *, ranks: int, preset: str = "tiny-llama") -> list[dict[str, Any]]:
    config = config_of(preset, [*base, *settings(strategy)])
    return on_ranks("tests.trainer.engine_rank:train", ranks=ranks, config=config, micro=1, steps=STEPS)


def test_inputs_get_their_gradient_before_weights_get_theirs() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.LayerNorm(4), torch.nn.Linear(4, 2))
    x = torch.randn(5, 3, requires_grad=True)
    branches = differentiate_inputs(model(x), torch.ones(5, 2), x)
    first, x.grad = x.grad, None
    assert all(weight.grad is None for weight in model.parameters())
    branches.differentiate_weights()
    split = [weight.grad for weight in model.parameters()]
    model.zero_grad()
    model(x).backward(torch.ones(5, 2))
    assert first is not None
    assert torch.equal(first, x.grad)
    assert all(torch.equal(a, b.grad) for a, b in zip(split, model.parameters(), strict=True))


def test_a_weight_that_is_used_twice_is_counted_once_in_each_use() -> None:
    layer = torch.nn.Linear(3, 3)
    x = torch.randn(5, 3, requires_grad=True)
    differentiate_inputs(layer(layer(x)), torch.ones(5, 3), x).differentiate_weights()
    split, layer.weight.grad = layer.weight.grad, None
    layer(layer(x)).backward(torch.ones(5, 3))
    assert torch.equal(split, layer.weight.grad)


def test_stages_with_different_batches_are_an_error_that_names_them() -> None:
    message = r"(?s)rank 0: .*batch: stages run different batches: stage 0 has 4 micro-batches of shape \[1, 16\], "
    message += r"where stage 1 has 2 micro-batches of shape \[2, 16\]; give all .*rank 1: .*stages run different"
    with pytest.raises(RanksError, match=message):
        on_ranks(f"{__name__}:run_different_batches", ranks=2, config=make_config(2))


def run_different_batches(config: dict[str, Any]) -> None:
    step = make_step(from_dict(config))
    batch = global_batch(from_dict(config), 0)
    step.run({key: value[:4] for key, value in batch.items()}, 1 + dist.get_rank())


def make_config(ranks: int) -> dict[str, Any]:
    return config_of("tiny-llama", [*MODEL, *settings(f"single pipeline={ranks} engine=muster")])


@pytest.mark.parametrize("end", ["dies", pytest.param("hangs", marks=pytest.mark.nightly)])
def test_neighbours_name_a_rank_that_does_not_answer(end: str) -> None:
    context = fork_context()
    with tempfile.TemporaryDirectory() as folder:
        run = partial(stop_in_backward, folder=folder, end=end)
        processes = [context.Process(target=run, args=(rank,)) for rank in range(3)]
        for process in processes:
            process.start()
        first, middle, last = processes
        try:
            for process in (first, last):
                process.join(120)
            assert (first.exitcode, last.exitcode) == (0, 0)
            if end == "dies":
                middle.join(60)
            assert middle.exitcode == (7 if end == "dies" else None)
            for rank in (0, 2):
                message = Path(folder, f"answer-{rank}").read_text()
                assert message.startswith(f"rank {rank} got no answer from rank 1 in the pipeline: ")
        finally:
            for process in processes:
                process.kill()


def stop_in_backward(rank: int, folder: str, end: str) -> None:
    """Exit with 0 if this rank is told which one does not answer."""
    torch.set_num_threads(1)
    config = from_dict(make_config(3))
    batch = global_batch(config, 0)
    # Ranks of a busy machine may start far apart. After a step with a long timeout they do not.
    join(rank, folder, timeout_s=100)
    make_step(config).run(batch, 1)
    dist.destroy_process_group()
    # A rank that has died is noticed at once.
    join(rank, folder, timeout_s=99 if end == "dies" else 8)
    step = make_step(config)
    if rank == 1:
        (_, weight), *_ = step.engine.named_parameters()
        weight.register_hook(lambda _: os._exit(7) if end == "dies" else time.sleep(600))
    try:
        step.run(batch, 1)
    except ConnectionLost as error:
        Path(folder, f"answer-{rank}").write_text(str(error))
        os._exit(0)
    os._exit(1)


def join(rank: int, folder: str, timeout_s: float) -> None:
    store = dist.FileStore(str(Path(folder, f"store-{timeout_s:g}")), 3)
    timeout = datetime.timedelta(seconds=timeout_s)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=3, timeout=timeout)
