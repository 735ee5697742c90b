"""muster's own tensor parallelism trains like one rank, and its two functions are conjugate."""

from __future__ import annotations

import datetime
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.trainer.curves import config_of, global_batch, make_step
from tests.trainer.forks import fork_context
from tests.trainer.ranks import RanksError, on_ranks
from tests.trainer.strategies import FAMILIES, LORA, LOSS_TOLERANCE, NORM_TOLERANCE, settings, train_alone
from trainer.config.load import from_dict
from trainer.engines.tensor_parallel import copy_to_ranks, sum_over_ranks

STEPS = 20
MODELS = ("llama", "gpt2", "qwen2", "qwen3", "mistral")
DAILY = [("gpt2", 2)]
# Products of other sizes round differently in bf16 and fp16. Both formats have fewer digits than the difference.
SHORT_TOLERANCE = {"bf16": 2e-2, "fp16": 2e-3}


@pytest.mark.parametrize(
    ("model", "ranks"),
    [
        pytest.param(model, ranks, marks=() if (model, ranks) in DAILY else pytest.mark.nightly)
        for model in MODELS
        for ranks in (2, 4)
    ],
)
def test_it_trains_like_one_rank(model: str, ranks: int) -> None:
    row = FAMILIES[model]
    base = (*row.settings, "optimizer.clip_norm=0.3", "batch.micro=2")
    expected = train_alone(row.preset, base, 2, STEPS)
    for curves in train(row.preset, base, ranks):
        assert curves["loss"] == pytest.approx(expected["loss"], abs=LOSS_TOLERANCE)
        assert curves["norm"] == pytest.approx(expected["norm"], rel=NORM_TOLERANCE)


@pytest.mark.nightly
@pytest.mark.parametrize("precision", SHORT_TOLERANCE)
def test_short_formats_train_like_one_rank(precision: str) -> None:
    base = (*FAMILIES["llama"].settings, "batch.micro=2", f"precision={precision}")
    expected = train_alone("tiny-llama", base, 2, STEPS)
    for curves in train("tiny-llama", base, 2):
        assert curves["loss"] == pytest.approx(expected["loss"], abs=SHORT_TOLERANCE[precision])


@pytest.mark.nightly
def test_recomputed_layers_train_like_one_rank() -> None:
    base = (*FAMILIES["llama"].settings, "batch.micro=2")
    expected = train_alone("tiny-llama", base, 2, STEPS)
    for curves in train("tiny-llama", (*base, "parallel.recompute=full"), 2):
        assert curves["loss"] == pytest.approx(expected["loss"], abs=LOSS_TOLERANCE)


def train(preset: str, base: tuple[str, ...], ranks: int) -> list[dict[str, list[float]]]:
    config = config_of(preset, [*base, *settings(f"single tensor={ranks} engine=muster")])
    return on_ranks("tests.trainer.curves:curve", ranks=ranks, config=config, micro=2, steps=STEPS)


def test_weights_that_all_ranks_hold_stay_equal_to_the_last_bit() -> None:
    config = make_config("qwen3")
    copies = on_ranks(f"{__name__}:train_and_list_copies", ranks=2, config=config)
    assert copies[0] == copies[1]
    assert {"embed.weight", "layers.0.attention_norm.weight", "layers.0.attention.q_norm.weight"} <= set(copies[0])
    assert not any("ffn.up" in name for name in copies[0])


def train_and_list_copies(config: dict[str, Any]) -> dict[str, list[float]]:
    settings_ = from_dict(config)
    step = make_step(settings_)
    for index in range(5):
        step.run(global_batch(settings_, index), 2)
    named = step.engine.named_parameters()
    return {name: value.flatten().tolist() for name, value in named if not hasattr(value, "placements")}


def test_a_rank_holds_its_part_of_each_split_matrix() -> None:
    shapes = on_ranks(f"{__name__}:list_parts", ranks=2, config=make_config("gpt2"))
    for own in shapes:
        assert own["layers.0.attention.q.weight"] == ([32, 32], [16, 32])
        assert own["layers.0.attention.q.bias"] == ([32], [16])
        assert own["layers.0.attention.o.weight"] == ([32, 32], [32, 16])
        assert own["layers.0.attention.o.bias"] == ([32], [32])
        assert own["layers.1.ffn.up.weight"] == ([128, 32], [64, 32])
        assert own["layers.1.ffn.down.weight"] == ([32, 128], [32, 64])


def list_parts(config: dict[str, Any]) -> dict[str, tuple[list[int], list[int]]]:
    named: Any = make_step(from_dict(config)).engine.named_parameters()
    split = {name: value for name, value in named if hasattr(value, "placements")}
    return {name: (list(value.shape), list(value.to_local().shape)) for name, value in split.items()}


def test_a_block_has_two_all_reduces_forward_and_two_backward() -> None:
    """With 2 blocks and 1 micro-batch these are 8. The norm of all gradients is another one."""
    counted = on_ranks("tests.trainer.curves:count_collectives", ranks=2, config=make_config("llama"), micro=8)
    assert counted[0]["c10d::allreduce_"] == 8 + 1


def make_config(family: str) -> dict[str, Any]:
    row = FAMILIES[family]
    return config_of(row.preset, [*row.settings, "batch.micro=2", *settings("single tensor=2 engine=muster")])


def test_the_two_functions_are_conjugate() -> None:
    """Each does in its backward pass what the other does in its forward pass."""
    for rank, (copied, copied_gradient, total, total_gradient) in enumerate(
        on_ranks(f"{__name__}:differentiate", ranks=3)
    ):
        assert copied == [1.0 + rank]
        assert copied_gradient == [10.0 + 11.0 + 12.0]
        assert total == [1.0 + 2.0 + 3.0]
        assert total_gradient == [10.0 + rank]


def differentiate() -> list[list[float]]:
    rank, results = dist.get_rank(), []
    for function in (copy_to_ranks, sum_over_ranks):
        x = torch.tensor([1.0 + rank], requires_grad=True)
        y = function(x, dist.group.WORLD)
        y.backward(torch.tensor([10.0 + rank]))
        results += [y.tolist(), x.grad.tolist()]
    return results


def test_a_layer_that_cannot_be_split_is_named() -> None:
    """The settings of an own model are not checked, so the layers are."""
    config = config_of("tiny-llama", [*FAMILIES["llama"].settings, *LORA, "lora.layers=[ffn.up]"])
    message = r"parallel.tensor: 2 ranks cannot split layers.0.ffn.up with parallel.engine=muster: it is a LoraLinear, "
    message += r"not a plain nn.Linear; set it to 1, or parallel.engine to torch"
    with pytest.raises(RanksError, match=message):
        on_ranks(f"{__name__}:split_lora", ranks=2, config=config)


def split_lora(config: dict[str, Any]) -> None:
    config["parallel"] |= {"strategy": "single", "tensor": 2, "engine": "muster"}
    make_step(from_dict(config))


def test_a_rank_that_dies_is_named_by_its_peer() -> None:
    context = fork_context()
    answers = context.SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        store = str(Path(folder, "store"))
        processes = [context.Process(target=die_before_a_sum, args=(rank, store, answers)) for rank in range(2)]
        for process in processes:
            process.start()
        try:
            for process in processes:
                process.join(240)
            assert [process.exitcode for process in processes] == [0, 7]
            assert answers.get() == ["rank 0 got no answer from rank 1 in the sum of a tensor parallel layer"]
        finally:
            for process in processes:
                process.kill()


def die_before_a_sum(rank: int, store: str, answers: Any) -> None:
    # Also the time to join, on a busy machine; the connections of a rank that has ended are lost at once.
    timeout = datetime.timedelta(seconds=120)
    dist.init_process_group("gloo", store=dist.FileStore(store, 2), rank=rank, world_size=2, timeout=timeout)
    x = torch.ones(1, requires_grad=True)
    y = copy_to_ranks(sum_over_ranks(x, dist.group.WORLD), dist.group.WORLD)
    if rank == 1:
        os._exit(7)
    try:
        y.backward()
    except RuntimeError as error:
        answers.put(error.__notes__)
        os._exit(0)
