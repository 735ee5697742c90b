"""Weights and gradients that are stored in bf16: close to fp32 over 20 steps, in the memory that they should take."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.trainer.checkpoint_state import open_checkpoints, save_and_wait
from tests.trainer.curves import config_of, global_batch, make_step
from tests.trainer.ranks import on_ranks
from tests.trainer.test_optimizer_ranks import digest
from trainer.auto.memory import estimate_memory
from trainer.auto.sizes import bound_sizes
from trainer.checkpoint.checkpoints import Checkpoints
from trainer.config.errors import ConfigError
from trainer.config.layout import Layout
from trainer.config.load import from_dict, load
from trainer.config.schema import OptimizerConfig, ParallelConfig
from trainer.models.lora import is_adapter
from trainer.optimizers.optimizer import Optimizer
from trainer.optimizers.sizes import count_state_bytes
from trainer.parallel.apply import parallelize
from trainer.parallel.engine import Recipe
from trainer.parallel.gradients import to_local
from trainer.parallel.mesh import Mesh
from trainer.parallel.modules import list_embeddings
from trainer.state_formats import list_state_formats
from trainer.step import Step

HERE = "tests.trainer.test_stored_formats"
STEPS = 20
LLAMA = ("model.dim=32", "model.ffn=64", "model.heads=4", "model.kv_heads=4", "model.vocab_size=64", "model.layers=2")
SETTINGS = (*LLAMA, "batch.size=16", "schedule.warmup=0", "schedule.kind=constant", "optimizer.clip_norm=0.3")
BF16 = ("precision=bf16", "optimizer.weights=bf16")
MASTER = "optimizer.master=true"
FORMATS = {
    "bf16 weights": (*BF16, "optimizer.gradients=bf16"),
    "bf16 weights, fp32 copies": (*BF16, "optimizer.gradients=bf16", "optimizer.master=true"),
    "bf16 weights, fp32 gradients": (*BF16, "optimizer.gradients=fp32"),
    "bf16 weights, fp32 gradients, fp32 copies": (*BF16, "optimizer.master=true"),
    "bf16 gradients": ("precision=bf16", "optimizer.gradients=bf16"),
    "bf16 weights, moments and gradients": (*BF16, "optimizer.gradients=bf16", "optimizer.moments=bf16"),
    "bf16 weights, Muon": (*BF16, "optimizer.gradients=bf16", "optimizer.name=muon"),
    "bf16 weights, SGD": (*BF16, "optimizer.gradients=bf16", "optimizer.name=sgd", "optimizer.lr=0.05"),
}
# torch's DDP stores gradients in the format of the weights.
DDP_FORMATS = [name for name, settings in FORMATS.items() if {*BF16, "optimizer.gradients=bf16"} <= {*settings}]
# The formats in which one rank trains by day, and ranks that hold shards of the state; together they have every part.
DAILY = {"single": ("bf16 weights, fp32 copies", "bf16 gradients"), "fsdp": ("bf16 weights, fp32 copies",)}
LOSS_TOLERANCE = 0.02
"""Difference of each of 20 losses from that of fp32 weights and gradients with the same products, relative to it."""
OTHER_STRATEGIES = ("ddp pipeline=2", "fsdp zero=1", "fsdp tensor=2", "fsdp pipeline=2", "hsdp shard=2")


def select(strategy: str, formats: list[str]) -> list[Any]:
    """Return a test case for each format; those that are not daily are left to the night."""
    daily = DAILY.get(strategy, ())
    return [
        pytest.param(strategy, name, marks=[] if name in daily else [pytest.mark.nightly], id=f"{strategy}: {name}")
        for name in formats
    ]


CASES = [*select("single", [*FORMATS]), *select("ddp", DDP_FORMATS), *select("fsdp", [*FORMATS])]


@pytest.mark.parametrize(("strategy", "name"), CASES)
def test_formats_train_like_fp32_and_take_the_memory_of_their_bytes(strategy: str, name: str) -> None:
    expected = train("single", reference(FORMATS[name]), ranks=1)[0]
    for result in train(strategy, FORMATS[name], ranks=1 if strategy == "single" else 2):
        assert result["loss"] == pytest.approx(expected["loss"], rel=LOSS_TOLERANCE)
        assert result["loss"] != expected["loss"]
        assert result["bytes"] == result["expected_bytes"]


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["bf16 weights", "bf16 weights, fp32 copies"])
@pytest.mark.parametrize("strategy", OTHER_STRATEGIES)
def test_every_way_of_spreading_a_model_stores_these_formats(strategy: str, name: str) -> None:
    expected = train("single", reference(FORMATS[name]), ranks=1)[0]
    for result in train(strategy, FORMATS[name], ranks=4):
        assert result["loss"] == pytest.approx(expected["loss"], rel=LOSS_TOLERANCE)
        assert result["bytes"]["weights"] == result["expected_bytes"]["weights"]


@pytest.mark.nightly_cases("ddp-bf16 weights", "single-bf16 weights")
@pytest.mark.parametrize(
    ("strategy", "name"),
    [
        ("single", "bf16 weights"),
        ("ddp", "bf16 weights"),
        ("fsdp", "bf16 weights, fp32 copies"),
        pytest.param("fsdp", "bf16 weights, fp32 gradients", marks=pytest.mark.nightly),
        pytest.param("ddp", "bf16 weights, Muon", marks=pytest.mark.nightly),
        pytest.param("fsdp", "bf16 weights, moments and gradients", marks=pytest.mark.nightly),
    ],
)
def test_a_resumed_run_has_the_same_bits(strategy: str, name: str, tmp_path: Path) -> None:
    config, ranks = make_config(strategy, FORMATS[name]), 1 if strategy == "single" else 2
    for whole, resumed in on_ranks(f"{HERE}:save_and_resume", ranks=ranks, config=config, path=tmp_path):
        assert whole == resumed


def test_updates_below_the_resolution_of_bf16_are_not_lost() -> None:
    """Rounded to the nearest, a weight of 1 would never change by 1/2000 of it."""
    for has_master in (False, True):
        weight = torch.nn.Parameter(torch.ones(4096, dtype=torch.bfloat16))
        settings = OptimizerConfig(name="sgd", momentum=0.0, weights="bf16", master=has_master, weight_decay=0)
        optimizer = Optimizer([("weight", weight)], settings)
        for step in range(100):
            weight.grad = torch.ones_like(weight)
            optimizer.step(1 / 2000, None, None, seed=step)
        assert float(weight.detach().float().mean()) == pytest.approx(0.95, abs=1e-3)
        before = weight.detach().clone()
        optimizer.step(1.0, None, torch.ones(()), seed=100)
        assert torch.equal(weight, before)


@pytest.mark.nightly_cases(
    "there1-here1-the checkpoint has fp32, and this run stores bf16 with fp32 copies",
    "there2-here2-the checkpoint has bf16, and this run stores fp32",
    "there4-here4-the checkpoint has bf16 with fp32 copies, and this run stores bf16",
    "there6-here6-",
)
@pytest.mark.parametrize(
    ("there", "here", "note"),
    [
        ([], ["precision=bf16", *BF16], "the checkpoint has fp32, and this run stores bf16"),
        ([], [*BF16, MASTER], "the checkpoint has fp32, and this run stores bf16 with fp32 copies"),
        ([*BF16], [], "the checkpoint has bf16, and this run stores fp32"),
        ([*BF16, MASTER], [], "the checkpoint has bf16 with fp32 copies, and this run stores fp32"),
        ([*BF16, MASTER], [*BF16], "the checkpoint has bf16 with fp32 copies, and this run stores bf16"),
        ([*BF16], [*BF16, MASTER], "the checkpoint has bf16, and this run stores bf16 with fp32 copies"),
        ([*BF16, MASTER], [*BF16, MASTER], ""),
    ],
)
def test_weights_of_a_checkpoint_are_converted(there: list[str], here: list[str], note: str, tmp_path: Path) -> None:
    saved, loaded = (make_step(from_dict(make_config("single", tuple(formats)))) for formats in (there, here))
    run_steps(saved, make_config("single", tuple(there)), range(3))
    checkpoints = Checkpoints(tmp_path)
    save_and_wait(checkpoints, 3, saved.tensors())
    checkpoint = checkpoints.newest()
    assert checkpoint is not None
    assert checkpoints.load(checkpoint, loaded.tensors()) == (f"weights were converted: {note}" if note else "")
    loaded.optimizer.round_master_weights()
    checkpoints.close()
    before, after = saved.tensors(), loaded.tensors()
    for name in (name for name in before if name.startswith("model.")):
        master = f"optim.{name.removeprefix('model.')}.master"
        exact = before.get(master, before[name])
        assert torch.equal(after[name], exact.to(after[name].dtype))
        if master in after:
            assert torch.equal(after[master], exact.float())


def test_frozen_weights_and_adapters_are_stored_in_bf16_too() -> None:
    formats = (*BF16, MASTER, "lora.rank=4", "checkpoint.initial=weights")
    step = make_step(from_dict(make_config("single", formats)))
    assert {value.dtype for _, value in step.engine.named_parameters()} == {torch.bfloat16}
    masters = [name for name in step.optimizer.tensors() if name.endswith(".master")]
    assert masters
    assert all(is_adapter(name.removesuffix(".master")) for name in masters)
    losses = run_steps(step, make_config("single", formats), range(8))
    assert losses[-1] < losses[0]


def test_memory_estimates_follow_the_formats() -> None:
    config = load("tiny-llama", [*BF16, "optimizer.gradients=bf16"])
    sizes = bound_sizes(config)
    assert sizes is not None
    alone, count = ParallelConfig(strategy="single"), sizes.parameters
    need = estimate_memory(sizes, alone, Layout(), "bf16", 1, 2, optimizer=config.optimizer)
    assert (need.weights, need.gradients, need.states, need.gathered) == (2 * count, 2 * count, 8 * count, 0)
    copied = bound_sizes(load("tiny-llama", [*BF16, "optimizer.gradients=bf16", MASTER]))
    assert copied is not None
    assert copied.states == 12 * count


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (["optimizer.weights=fp16"], "optimizer.weights: 'fp16' is not allowed; allowed: fp32, bf16"),
        (["optimizer.gradients=int8"], "optimizer.gradients: 'int8' is not allowed; allowed: fp32, bf16"),
        (["optimizer.master=fp32"], "optimizer.master: "),
        (["optimizer.weights=bf16"], "optimizer.weights: bf16, but precision=fp32 computes products of fp32 weights"),
        (["optimizer.weights=bf16", "precision=fp16"], "set it to fp32, or precision to bf16"),
        ([MASTER], "optimizer.master: true, but optimizer.weights is fp32, which needs no copies"),
        ([*BF16, "parallel.strategy=ddp"], "optimizer.gradients: fp32, but ddp stores gradients in the format of"),
        ([*BF16, "parallel.strategy=single", "parallel.context=2"], "set it to bf16, or parallel.strategy to fsdp"),
        ([*BF16, "parallel.strategy=single", "parallel.context=2"], "context ranks average gradients by ddp, which"),
        ([*BF16, "parallel.strategy=ddp", "parallel.engine=muster"], "set it to fp32, or parallel.engine to torch"),
        ([*BF16, "parallel.strategy=fsdp", "communication.compression=topk"], "or communication.compression to none"),
        ([*BF16, "fp8.scaling=tensor"], "optimizer.weights: bf16, but fp8.scaling=tensor computes products of fp32"),
    ],
)
def test_nonsense_is_refused_with_the_fix(settings: list[str], expected: str) -> None:
    with pytest.raises(ConfigError) as raised:
        load("tiny-llama", settings)
    assert expected in str(raised.value)


def test_batch_norms_need_fp32_weights() -> None:
    with pytest.raises(ConfigError, match=r"optimizer\.weights: bf16, but the batch norms of resnet need weights"):
        load("tiny-resnet", [*BF16, "parallel.strategy=single"])
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
    recipe = Recipe(ParallelConfig(strategy="single"), "bf16", optimizer=OptimizerConfig(weights="bf16"))
    with pytest.raises(ConfigError, match="the batch norms of Sequential need weights in the format of their"):
        parallelize(model, recipe, Mesh(Layout(), 0, torch.device("cpu"), uses_fully_shard=False))


def test_a_torch_that_shards_gradients_only_in_the_format_of_weights_is_refused() -> None:
    (text,) = on_ranks(f"{HERE}:shard_with_older_torch", ranks=1, config=make_config("fsdp", FORMATS["bf16 gradients"]))
    assert text.startswith("optimizer.gradients: bf16, but fully_shard of torch 2.")
    assert text.endswith("stores gradients in the format of the weights, fp32; set it to fp32, or use torch 2.15")


def shard_with_older_torch(config: dict[str, Any]) -> str:
    with pytest.MonkeyPatch.context() as patch:
        patch.delattr("torch.distributed.fsdp._fully_shard._fsdp_param.FSDPParam.unsharded_grad_dtype", raising=False)
        with pytest.raises(ConfigError) as raised:
            make_step(from_dict(config))
    return str(raised.value)


def reference(formats: tuple[str, ...]) -> tuple[str, ...]:
    """Return the same settings with fp32 weights, gradients and moments."""
    dropped = ("optimizer.weights", "optimizer.gradients", "optimizer.master", "optimizer.moments")
    return tuple(setting for setting in formats if not setting.startswith(dropped))


@cache
def train(strategy: str, formats: tuple[str, ...], ranks: int) -> list[Any]:
    return on_ranks(f"{HERE}:train_on_rank", ranks=ranks, config=make_config(strategy, formats))


def make_config(strategy: str, formats: tuple[str, ...]) -> dict[str, Any]:
    first, *options = strategy.split()
    parallel = [f"parallel.strategy={first}", *(f"parallel.{option}" for option in options)]
    return config_of("tiny-llama", [*SETTINGS, *parallel, *formats])


def train_on_rank(config: dict[str, Any]) -> dict[str, Any]:
    """Return the losses of a run, and the bytes of its state with those that its formats should take."""
    settings = from_dict(config)
    step = make_step(settings)
    gradients: list[int] = []
    step.before_update = lambda: gradients.append(sum(map(count_bytes, step.optimizer.gradients())))
    losses = run_steps(step, config, range(STEPS))
    trained = [(name, to_local(value)) for name, value in step.engine.named_parameters() if value.requires_grad]
    formats, values = list_state_formats(settings), sum(value.numel() for _, value in trained)
    state = {name: value for name, value in step.optimizer.tensors().items() if name != "updates"}
    shapes = [(name, tuple(value.shape)) for name, value in trained]
    return {
        "loss": losses,
        "bytes": {
            "weights": sum(count_bytes(value) for _, value in trained),
            "gradients": gradients[-1],
            "state": sum(map(count_bytes, state.values())),
        },
        "expected_bytes": {
            "weights": formats.weight_bytes * values,
            "gradients": formats.gradient_bytes * values,
            "state": count_state_bytes(shapes, settings.optimizer, list_embeddings(step.engine.modules)),
        },
    }


def save_and_resume(config: dict[str, Any], path: Path) -> tuple[str, str]:
    """Return digests of the state after six steps: of a whole run, and of one that loads a checkpoint of step 3."""
    step = make_step(from_dict(config))
    run_steps(step, config, range(3))
    checkpoints = open_checkpoints(path)
    save_and_wait(checkpoints, 3, step.saved_tensors())
    run_steps(step, config, range(3, 6))
    resumed = make_step(from_dict(config))
    checkpoint = checkpoints.newest()
    assert checkpoint is not None
    assert not checkpoints.load(checkpoint, resumed.tensors())
    checkpoints.close()
    resumed.load_state({"step": 3})
    run_steps(resumed, config, range(3, 6))
    return digest(step.tensors()), digest(resumed.tensors())


def run_steps(step: Step, config: dict[str, Any], steps: range, micro: int = 2) -> list[float]:
    settings, mesh = from_dict(config), step.engine.mesh
    size = settings.batch.size // mesh.layout.dp_size
    losses = []
    for index in steps:
        batch = {key: value[mesh.dp_rank * size :][:size] for key, value in global_batch(settings, index).items()}
        losses.append(float(mesh.mean_over_data(step.run(batch, micro).loss)))
    return losses


def count_bytes(tensor: torch.Tensor) -> int:
    local = to_local(tensor)
    return local.numel() * local.element_size()
