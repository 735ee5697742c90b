"""muster's own data parallelism has the bits of torch's DDP, and names what keeps ranks from training together."""

from __future__ import annotations

import datetime
import os
import tempfile
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from tests.trainer.curves import config_of
from tests.trainer.forks import fork_context
from tests.trainer.ranks import RanksError, on_ranks
from tests.trainer.strategies import FAMILIES, settings
from tests.trainer.test_parallel_ddp import MODEL as LARGE
from trainer.config.errors import ConfigError
from trainer.config.layout import Layout
from trainer.config.schema import ParallelConfig
from trainer.engines.data_parallel import GradientBuckets, plan_buckets
from trainer.parallel.apply import parallelize
from trainer.parallel.engine import Engine, Recipe
from trainer.parallel.mesh import Mesh
from trainer.parallel.same_model import check_device, describe_difference, describe_tensors

STEPS, DAILY_STEPS = 50, 10
MODELS = {name: FAMILIES[name] for name in ("mlp", "resnet", "llama", "gpt2", "llama, LoRA", "mixtral")}
PRECISIONS = {
    "fp32": "precision=fp32",
    "bf16": "precision=bf16",
    "fp16": "precision=fp16",
    "summed in bf16": "parallel.reduce=bf16",
}
# Micro-batches of a rank, and the setting.
ACCUMULATION = {"at once": (1, "auto"), "two micro-batches": (2, "auto"), "two, all averaged": (2, "sync")}
TABLE = [
    (model, precision, accumulation, ranks)
    for model, precision, accumulation, ranks in product(MODELS, PRECISIONS, ACCUMULATION, (2, 4))
    # Refused: micro-batches would be summed in bf16.
    if not (precision == "summed in bf16" and accumulation == "two, all averaged")
]
DAILY = [
    ("mlp", "fp32", "at once", 4),
    ("mlp", "fp16", "two, all averaged", 2),
    ("resnet", "fp32", "two micro-batches", 2),
    ("llama", "fp32", "at once", 4),
    ("llama", "bf16", "two micro-batches", 2),
    ("llama, LoRA", "summed in bf16", "at once", 2),
]


@pytest.mark.nightly_cases("resnet-fp32-two micro-batches-2-10")
@pytest.mark.parametrize(
    ("model", "precision", "accumulation", "ranks", "steps"),
    [
        *((*cell, DAILY_STEPS) for cell in DAILY),
        *(pytest.param(*cell, STEPS, marks=pytest.mark.nightly) for cell in TABLE),
    ],
)
def test_every_bit_is_that_of_torch(model: str, precision: str, accumulation: str, ranks: int, steps: int) -> None:
    """With the same buckets, both engines sum in the same order."""
    row, (count, accumulate) = MODELS[model], ACCUMULATION[accumulation]
    base = [*row.settings, *settings(f"ddp accumulate={accumulate}"), PRECISIONS[precision]]
    # The global batch has a size that all of them divide.
    size = ranks * row.micro * count
    compare_engines(row.preset, [*base, f"batch.size={size}"], ranks=ranks, micro=row.micro, steps=steps)


def test_several_buckets_have_the_bits_of_torch() -> None:
    """The order of a sum depends on the position in the bucket, so both must have the same buckets."""
    compare_engines("tiny-llama", [*LARGE, *settings("ddp bucket_mb=1")], ranks=4, micro=1, steps=5)


def test_context_ranks_have_the_bits_of_torch() -> None:
    base = [*FAMILIES["llama"].settings, *settings("ddp context=2")]
    compare_engines("tiny-llama", base, ranks=2, micro=2, steps=5)


@pytest.mark.nightly
@pytest.mark.parametrize("mode", ["blocks", "whole"])
def test_compiled_models_have_the_bits_of_torch(mode: str) -> None:
    base = [*FAMILIES["llama"].settings, *settings("ddp"), f"compile.mode={mode}", "compile.backend=aot_eager"]
    compare_engines("tiny-llama", base, ranks=2, micro=2, steps=5)


def test_recomputed_layers_have_the_bits_of_torch() -> None:
    base = [*FAMILIES["llama"].settings, *settings("ddp recompute=full")]
    compare_engines("tiny-llama", base, ranks=2, micro=2, steps=5)


def test_one_rank_has_the_bits_of_a_single_process() -> None:
    """It has nobody to send to, whatever decides how gradients are sent."""
    base = [*FAMILIES["llama"].settings, "optimizer.clip_norm=0.3"]
    single = train("tiny-llama", [*base, *settings("single")], ranks=1, micro=2)
    for how in ("pattern=backend", "pattern=ring", "pattern=hierarchical", "compression=topk"):
        alone = [*base, *settings("ddp engine=muster"), f"communication.{how}"]
        assert train("tiny-llama", alone, ranks=1, micro=2) == single, how


def compare_engines(preset: str, base: list[str], *, ranks: int, micro: int, steps: int = STEPS) -> None:
    ours, theirs = (
        train(preset, [*base, f"parallel.engine={engine}"], ranks=ranks, micro=micro, steps=steps)
        for engine in ("muster", "torch")
    )
    assert ours == theirs
    assert len({rank["digest"] for rank in ours}) == 1 or preset == "tiny-resnet"  # batch norms differ by rank


def train(preset: str, overrides: list[str], *, ranks: int, micro: int, steps: int = 5) -> list[dict[str, Any]]:
    config = config_of(preset, overrides)
    return on_ranks("tests.trainer.engine_rank:train", ranks=ranks, config=config, micro=micro, steps=steps)


def test_buckets_begin_with_the_last_parameter_and_end_when_they_are_full() -> None:
    a, b, c, d = (nn.Parameter(torch.zeros(count)) for count in (3, 1, 5, 2))
    assert plan_buckets([a, b, c, d], 16) == [[d, c], [b, a]]
    assert plan_buckets([a, b, c, d], 8) == [[d], [c], [b, a]]
    assert plan_buckets([], 8) == []


class Sums:
    """Buckets of one parameter each, whose averages are recorded instead of sent."""

    def __init__(self, divisor: int = 1) -> None:
        self.weights = [nn.Parameter(torch.tensor([float(index)])) for index in range(3)]
        self.log: list[str] = []
        self.buckets = GradientBuckets(self.weights, 1, self.start, divisor)

    def start(self, values: torch.Tensor, parameters: Sequence[nn.Parameter]) -> Callable[[], None]:
        assert sum(parameter.numel() for parameter in parameters) == values.numel()
        name = f"{values.item():g}"
        self.log.append(f"start {name}")
        return lambda: self.log.append(f"wait {name}")


def test_buckets_start_in_their_order_even_if_gradients_come_in_another() -> None:
    sums = Sums()
    sums.buckets.begin(sends=True)
    # The bucket of the last weight is the first.
    for index, started in [(0, []), (2, ["start 30"]), (1, ["start 30", "start 20", "start 10"])]:
        (sums.weights[index] * 10 * (index + 1)).sum().backward()
        assert sums.log == started
    assert sums.buckets.finish() == set()
    assert sums.log[3:] == ["wait 30", "wait 20", "wait 10"]


def test_gradients_are_views_of_buckets_and_stay_there_over_micro_batches() -> None:
    sums = Sums()
    places = []
    for _ in range(2):
        for sends in (False, True):
            sums.buckets.begin(sends=sends)
            sum(sums.weights).sum().backward()
            sums.buckets.finish()
            places.append([weight.grad.data_ptr() for weight in sums.weights if weight.grad is not None])
        assert [weight.grad for weight in sums.weights] == [torch.tensor([2.0])] * 3
        for weight in sums.weights:
            weight.grad = None  # as the step does
    assert all(place == places[0] for place in places)
    assert sums.log == ["start 2", "start 2", "start 2", "wait 2", "wait 2", "wait 2"] * 2


def test_gradients_are_divided_once_when_they_are_sent() -> None:
    """Also the one of a weight that only an earlier micro-batch of the step has used."""
    sums = Sums(divisor=4)
    for sends, used in ((False, sums.weights), (True, sums.weights[1:])):
        sums.buckets.begin(sends=sends)
        sum(8 * weight for weight in used).sum().backward()
        sums.buckets.finish()
    assert [float(weight.grad) for weight in sums.weights if weight.grad is not None] == [2, 4, 4]
    assert sums.log == ["start 4", "start 4", "start 2", "wait 4", "wait 4", "wait 2"]
    for weight in sums.weights:
        weight.grad = None
    sums.buckets.begin(sends=True)
    sum(8 * weight for weight in sums.weights).sum().backward()
    sums.buckets.finish()
    assert sums.log[6:9] == ["start 2", "start 2", "start 2"]


def test_a_gradient_that_arrives_twice_is_refused_when_it_is_sent() -> None:
    """As from a layer that runs twice in reentrant checkpoints."""
    sums = Sums()
    for sends in (False, True):
        sums.buckets.begin(sends=sends)
        sums.weights[0].sum().backward()
    with pytest.raises(RuntimeError, match=r"shape \[1\] arrived twice .* use_reentrant=False"):
        sums.weights[0].sum().backward()


def test_after_an_interrupted_backward_pass_the_next_averages_every_bucket() -> None:
    sums = Sums()
    sums.buckets.begin(sends=True)
    (sums.weights[2] * 30).sum().backward()
    # Here an exception ends the pass: `finish` is not called.
    sums.buckets.begin(sends=True)
    assert sums.log == ["start 30", "wait 30"]
    for weight in sums.weights:
        weight.grad = None
    sum(sums.weights).sum().backward()
    assert sums.buckets.finish() == set()
    assert sums.log[2:] == ["start 1", "start 1", "start 1", "wait 1", "wait 1", "wait 1"]


def test_a_gradient_has_the_strides_of_its_parameter() -> None:
    weight = nn.Parameter(torch.zeros(4, 3, 2, 2).to(memory_format=torch.channels_last))
    buckets = GradientBuckets([weight], 1, lambda *_: lambda: None)
    buckets.begin(sends=True)
    weight.square().sum().backward()
    buckets.finish()
    assert weight.grad is not None
    assert weight.grad.stride() == weight.stride()


class Branches(nn.Module):
    """A model whose ranks use different weights: rank r the weights `common` and `branches.r`."""

    def __init__(self) -> None:
        super().__init__()
        self.common = nn.Linear(1, 1, bias=False)
        self.branches = nn.ModuleList([nn.Linear(1, 1, bias=False) for _ in range(3)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.common(x) + self.branches[dist.get_rank()](x)
        return result


def test_unused_weights_are_zeros_in_the_average() -> None:
    """On 2 ranks, each of the first two branches has a gradient of 1 on one rank, and the third on none."""
    gradients = on_ranks(f"{__name__}:differentiate_branches", ranks=2, allowed=True)
    assert gradients == [[1.0, 0.5, 0.5, 0.0]] * 2


def test_unused_weights_are_an_error_that_names_them() -> None:
    with pytest.raises(RanksError, match=r"model: the loss does not depend on branches.1.weight, branches.2.weight, "):
        on_ranks(f"{__name__}:differentiate_branches", ranks=2, allowed=False)


def differentiate_branches(allowed: bool) -> list[float]:
    engine = spread(Branches(), find_unused_parameters=allowed)
    batch = {"inputs": torch.ones(1, 1), "targets": torch.zeros(1)}
    engine.forward_backward(batch, lambda outputs, _: outputs.sum(), 1, None)
    return [float(value.grad) for _, value in engine.named_parameters() if value.grad is not None]


def test_all_ranks_start_from_the_values_of_the_first() -> None:
    first, second = on_ranks(f"{__name__}:start_from_other_values", ranks=2)
    assert first == second == ([0.0, 0.0], [0.0, 0.0])


def start_from_other_values() -> tuple[list[float], list[float]]:
    """Return, on a rank, the weights and buffers after a start with the rank's number everywhere."""

    def fill(modules: Any) -> None:
        for value in [*modules[0].parameters(), *modules[0].buffers()]:
            value.detach().fill_(dist.get_rank())

    class Norm(nn.BatchNorm1d):
        def init_buffers(self, _device: torch.device) -> None:
            pass

    engine = spread(lambda: Norm(1), fill=fill)
    weights = [float(value) for _, value in engine.named_parameters()]
    return weights, [float(value) for name, value in engine.named_buffers() if "running" in name]


@pytest.mark.parametrize("engine", ["torch", "muster"])
def test_ranks_with_different_models_are_an_error_that_names_the_tensor(engine: str) -> None:
    message = r"(?s)rank 0: .*model: ranks have different models: rank 0 has weight \[1, 2\] torch.float32, trained, "
    message += r"where rank 1 has weight \[1, 3\] torch.float32, trained; .*rank 1: .*ranks have different models"
    with pytest.raises(RanksError, match=message):
        on_ranks(f"{__name__}:start_different_models", ranks=2, engine=engine)


def start_different_models(engine: Any) -> None:
    spread(nn.Linear(2 + dist.get_rank(), 1), engine=engine)


def test_models_are_compared_without_pickled_objects() -> None:
    on_ranks(f"{__name__}:compare_models_of_different_lengths", ranks=3)


def compare_models_of_different_lengths() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("torch.distributed.distributed_c10d._object_to_tensor", None)
        patch.setattr("torch.distributed.distributed_c10d._tensor_to_object", None)
        spread(nn.Linear(1, 1))
        message = r"rank 0 has bias \[1\] torch.float32, trained, where rank 2 has nothing"
        with pytest.raises(ConfigError, match=message):
            spread(nn.Linear(1, 1, bias=dist.get_rank() < 2))


def test_a_missing_or_frozen_weight_is_named() -> None:
    whole, part = nn.Linear(1, 1), nn.Linear(1, 1, bias=False)
    problem = describe_difference([describe_tensors(whole), describe_tensors(whole), describe_tensors(part)])
    assert "rank 0 has bias [1] torch.float32, trained, where rank 2 has nothing" in problem.message
    frozen = nn.Linear(1, 1).requires_grad_(False)
    problem = describe_difference([describe_tensors(whole), describe_tensors(frozen)])
    assert "trained, where rank 1 has weight [1, 1] torch.float32, frozen" in problem.message


def test_a_weight_on_another_device_is_named() -> None:
    model = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1, device="meta"))
    with pytest.raises(ConfigError, match=r"model: 1.weight is on meta, but this rank trains on cpu; create it on"):
        check_device(model, torch.device("cpu"))


def test_ranks_raise_if_another_one_dies_in_the_backward_pass() -> None:
    context = fork_context()
    answers = context.SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        processes = [
            context.Process(target=die_in_backward, args=(rank, str(Path(folder, "store")), answers))
            for rank in range(3)
        ]
        for process in processes:
            process.start()
        try:
            for process in processes:
                process.join(240)
            assert [process.exitcode for process in processes] == [0, 0, 7]
            assert sorted(answers.get() for _ in range(2)) == [
                (0, ["rank 0 got no answer from at least one of the ranks 1, 2 in the average of gradients"]),
                (1, ["rank 1 got no answer from at least one of the ranks 0, 2 in the average of gradients"]),
            ]
        finally:
            for process in processes:
                process.kill()


def die_in_backward(rank: int, store: str, answers: Any) -> None:
    torch.set_num_threads(1)
    # Also the time to join, on a busy machine; the connections of a rank that has ended are lost at once.
    timeout = datetime.timedelta(seconds=120)
    dist.init_process_group("gloo", store=dist.FileStore(store, 3), rank=rank, world_size=3, timeout=timeout)
    engine = spread(nn.Linear(4, 4))
    batch = {"inputs": torch.ones(1, 4), "targets": torch.zeros(1)}
    engine.forward_backward(batch, lambda outputs, _: outputs.sum(), 1, None)
    if rank == 2:
        (_, weight), *_ = engine.named_parameters()
        weight.register_hook(lambda _: os._exit(7))
    try:
        engine.forward_backward(batch, lambda outputs, _: outputs.sum(), 1, None)
    except RuntimeError as error:
        answers.put((rank, error.__notes__))
        os._exit(0)


def spread(model: Any, *, fill: Any = None, engine: Any = "muster", **options: Any) -> Engine:
    parallel = ParallelConfig(strategy="ddp", engine=engine, **options)
    layout = Layout(replicate=dist.get_world_size())
    mesh = Mesh(layout, dist.get_rank(), torch.device("cpu"), uses_fully_shard=False)
    return parallelize(model, Recipe(parallel), mesh, fill)
