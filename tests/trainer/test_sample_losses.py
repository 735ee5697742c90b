"""The training loss of each source of a mixture: exact under every strategy, and free of the order of ranks."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import pytest
import torch

from tests.trainer.curves import config_of, global_batch, ignore_targets, make_step
from tests.trainer.ranks import on_ranks
from tests.trainer.strategies import LLAMA, LOSS_TOLERANCE, settings
from trainer.config.load import from_dict
from trainer.models.functional import IGNORED_TARGET
from trainer.sample_losses import SampleLosses, average_by_source

SAMPLE_SOURCES = (0, 1, 2, 0, 1, 1, 0, 1)
STRATEGIES = {
    "ddp": "ddp",
    "hsdp": "hsdp shard=2",
    "tensor with pipeline": "single tensor=2 pipeline=2",
    "pipeline, gpipe": "ddp pipeline=2 schedule=gpipe",
    "pipeline, interleaved": "ddp pipeline=2 schedule=interleaved",
    "context with fsdp": "fsdp context=2",
}
DAILY = ("hsdp", "pipeline, gpipe", "context with fsdp")
COMPILED = ("compile.mode=whole", "compile.backend=aot_eager")


def test_samples_are_summed_by_source_in_the_order_of_micro_batches() -> None:
    samples = SampleLosses(3, torch.device("cpu"))
    for offset in (0.0, 10.0):
        samples.begin(4)
        for micro in (0, 2):
            losses = torch.tensor([[1.0, 2.0], [3.0, 0.0]]) + micro + offset
            samples.record(losses, torch.tensor([[5, 6], [7, IGNORED_TARGET]]))
    # Of source 1 there is no sample; the losses are those of the second step only.
    sums = samples.sum_by_source(torch.tensor([0, 2, 2, 2]))
    assert sums.tolist() == [[23, 2], [0, 0], [23 + 27 + 27, 1 + 2 + 1]]


def test_a_bad_sample_spoils_only_the_loss_of_its_source() -> None:
    samples = SampleLosses(2, torch.device("cpu"))
    samples.begin(2)
    samples.record(torch.tensor([[math.nan], [2.0]]), torch.tensor([[1], [1]]))
    bad, good = samples.sum_by_source(torch.tensor([0, 1])).tolist()
    assert math.isnan(bad[0])
    assert good == [2, 1]


@pytest.mark.nightly_cases("context with fsdp")
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in DAILY else pytest.mark.nightly) for name in STRATEGIES]
)
def test_every_strategy_gives_the_losses_of_one_rank(name: str) -> None:
    expected = measure_alone()
    for means, loss in measure(STRATEGIES[name]):
        assert means == pytest.approx(expected[0], abs=LOSS_TOLERANCE)
        assert loss == pytest.approx(expected[1], abs=LOSS_TOLERANCE)
    # The losses of the sources differ, so a wrong assignment would show.
    low, middle, high = sorted(expected[0])
    assert min(middle - low, high - middle) > 100 * LOSS_TOLERANCE


@pytest.mark.nightly
def test_a_compiled_model_records_them_in_one_graph() -> None:
    """The place of a micro-batch is not part of the graph, so later ones use that of the first."""
    ((means, _),), ((expected, _),) = (measure("single", *more, ranks=1, micro=2) for more in (COMPILED, ()))
    assert means == pytest.approx(expected, abs=LOSS_TOLERANCE)
    (graphs,) = on_ranks(f"{__name__}:count_graphs", ranks=1, config=make_config("single", *COMPILED))
    assert graphs == 1


def measure(strategy: str, *more: str, ranks: int = 4, micro: int = 1) -> list[Any]:
    return on_ranks(f"{__name__}:train", ranks=ranks, config=make_config(strategy, *more), micro=micro)


@cache
def measure_alone() -> Any:
    """Return the figures of a single rank with a single micro-batch."""
    (figures,) = measure("single", ranks=1, micro=8)
    return figures


def make_config(strategy: str, *more: str) -> dict[str, Any]:
    return config_of("tiny-llama", [*LLAMA, "model.layers=4", *settings(strategy), *more])


def train(config: dict[str, Any], micro: int) -> tuple[list[float], float]:
    """Return the loss of each source and that of all samples in the second step of a run; some targets are ignored."""
    parsed = from_dict(config)
    step = make_step(parsed, count_targets=True, sources=3)
    mesh = step.engine.mesh
    size = parsed.batch.size // mesh.layout.dp_size
    for index in range(2):
        whole = global_batch(parsed, index)
        whole["targets"] = ignore_targets(whole["targets"])
        whole["sources"] = torch.tensor(SAMPLE_SOURCES)
        batch = {name: value[mesh.dp_rank * size :][:size] for name, value in whole.items()}
        result = step.run(batch, micro)
    assert result.source_sums is not None
    return average_by_source(result.source_sums, mesh).tolist(), float(mesh.mean_over_data(result.loss))


def count_graphs(config: dict[str, Any]) -> int:
    """Return the number of graphs that a run compiles."""
    from torch._dynamo.utils import counters

    torch.compiler.reset()
    counters.clear()
    train(config, micro=2)
    return int(counters["stats"]["unique_graphs"])
