"""Models of other people's shapes train on several ranks like on one, with their own units, types and weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.trainer.own_shapes import LAYERS, VOCABULARY, Layer, make_shape
from tests.trainer.ranks import RanksError, on_ranks
from tests.trainer.test_parallel_refusals import make_single_mesh
from trainer.config.errors import ConfigError
from trainer.config.layout import resolve_layout
from trainer.config.models import MlpConfig
from trainer.config.schema import CompileConfig, Config, OptimizerConfig, ParallelConfig
from trainer.models.functional import compute_loss
from trainer.objective import StepMeanLoss
from trainer.parallel.apply import parallelize
from trainer.parallel.engine import Recipe
from trainer.parallel.gather import gather_weights
from trainer.parallel.mesh import Mesh
from trainer.step import Step

BATCH, STEPS = 8, 6
# All runs start from the same weights and see the same samples; only the rounding of sums over ranks differs.
TOLERANCE = 1e-5
TRAINED = ["hugging face, tied", "nanogpt", "sharing layers", "partly frozen"]
# They differ from the others in the search for units, which test_units.py checks by day.
TRAINED_AT_NIGHT = ["hugging face", "returning an object", "wrapped", "looped", "embedding as head"]
SHAPES = [*TRAINED, *(pytest.param(shape, marks=pytest.mark.nightly) for shape in TRAINED_AT_NIGHT)]


@pytest.mark.parametrize("shape", SHAPES)
def test_a_shape_trains_like_on_one_rank(shape: str) -> None:
    (expected,) = train_on(1, shape, strategy="single")
    assert expected["losses"][-1] < expected["losses"][0]
    for strategy in ("ddp", "fsdp"):
        for result in train_on(2, shape, strategy=strategy):
            assert result["losses"] == pytest.approx(expected["losses"], rel=TOLERANCE), strategy
            assert result["norms"] == pytest.approx(expected["norms"], rel=10 * TOLERANCE), strategy
            assert result["names"] == expected["names"]


OPTIONS: dict[str, dict[str, Any]] = {
    "recomputed": {"recompute": "full"},
    "zero 2": {"zero": 2},
    "products kept, two layers ahead": {"recompute": "selective", "prefetch": 2},
    "compiled": {"compiled": "blocks"},
}


@pytest.mark.nightly_cases("compiled")
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_options_that_work_on_units_change_no_result(options: dict[str, Any]) -> None:
    (expected,) = train_on(1, "nanogpt", strategy="single")
    for result in train_on(2, "nanogpt", strategy="fsdp", **options):
        assert result["losses"] == pytest.approx(expected["losses"], rel=TOLERANCE)


@pytest.mark.parametrize(("shape", "strategy"), [("wrapped", "fsdp"), ("hugging face, tied", "ddp")])
def test_the_whole_model_is_collected_on_rank_0(shape: str, strategy: str) -> None:
    (gathered, following), nothing = on_ranks(f"{__name__}:gather", ranks=2, shape=shape, strategy=strategy)
    assert gathered == pytest.approx(following, rel=TOLERANCE)
    assert nothing is None


def test_replicated_shards_train_like_one_rank() -> None:
    (expected,) = train_on(1, "wrapped", strategy="single")
    for result in train_on(4, "wrapped", strategy="hsdp", shard=2):
        assert result["losses"] == pytest.approx(expected["losses"], rel=TOLERANCE)


@pytest.mark.nightly_cases("nanogpt")
@pytest.mark.parametrize("shape", ["hugging face", "nanogpt"])
def test_sharded_layers_are_gathered_one_at_a_time(shape: str) -> None:
    layer = sum(weight.numel() for weight in Layer().parameters())
    for sizes in on_ranks(f"{__name__}:gathered_sizes", ranks=2, shape=shape):
        # Each layer in forward and again in backward, the root once.
        assert sizes.count(layer) == 2 * LAYERS
        assert len(sizes) == 2 * LAYERS + 1


def test_a_layer_that_is_not_called_is_named() -> None:
    with pytest.raises(RanksError) as error:
        train_on(2, "bypassing", strategy="fsdp")
    assert (
        "Bypassing uses weights of model.layers.0, model.layers.1, model.layers.2 without calling the layer; call"
        in (str(error.value))
    )


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_frozen_weights_stay_and_have_no_optimizer_state(strategy: str) -> None:
    before = make_shape("partly frozen").state_dict()
    for after, names in on_ranks(f"{__name__}:train_frozen", ranks=2, strategy=strategy):
        trained = {name for name in before if not torch.equal(before[name], after[name])}
        assert {name.rsplit(".", 2)[0] for name in trained if name.startswith("model.")} <= {
            "model.layers.2",
            "model.layers.2.mlp",
        }
        assert "lm_head.weight" in trained
        # Every weight is stored once; a frozen one has nothing else.
        assert {f"model.{name}" for name in before} <= set(names)
        optimized = {name.removeprefix("optim.").rsplit(".", 1)[0] for name in names if name.startswith("optim.")}
        assert optimized - {"updates"} == {"lm_head.weight", *(name for name in before if "layers.2." in name)}


def test_a_model_without_trained_weights_is_refused() -> None:
    model = make_shape("hugging face").requires_grad_(False)
    with pytest.raises(ConfigError, match="model: HuggingFaceShaped has no weight with requires_grad, so there is"):
        parallelize(model, Recipe(ParallelConfig(strategy="single")), make_single_mesh())


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_a_bf16_model_is_stored_as_fp32(strategy: str) -> None:
    (expected,) = train_on(1, "nanogpt", strategy="single", dtype="bfloat16")
    line = "weights: stored as fp32, the model has bfloat16; `precision` is the format of its matrix products"
    assert line in expected["choices"]
    for result in train_on(2, "nanogpt", strategy=strategy, dtype="bfloat16"):
        assert set(result["dtypes"]) == {"torch.float32"}
        assert result["losses"] == pytest.approx(expected["losses"], rel=TOLERANCE)
        assert result["names"] == train_on(1, "nanogpt", strategy="single")[0]["names"]


REFUSED_TENSORS = {
    "model: model.embed_tokens.weight is float64; the allowed types are float32, bfloat16 and float16; weights are": (
        torch.float64,
        "cpu",
    ),
    r"model: model.embed_tokens.weight has no values \(device meta\); load the weights first": (torch.float32, "meta"),
}


@pytest.mark.parametrize("message", REFUSED_TENSORS)
def test_weights_that_cannot_be_stored_as_fp32_are_refused(message: str) -> None:
    dtype, device = REFUSED_TENSORS[message]
    model = make_shape("hugging face", dtype).to(device)
    with pytest.raises(ConfigError, match=message):
        parallelize(model, Recipe(ParallelConfig(strategy="single")), make_single_mesh())


def test_weights_without_a_gradient_are_named_or_searched() -> None:
    (expected,) = train_on(1, "partly unused", strategy="single")
    for options in ({"strategy": "fsdp"}, {"strategy": "ddp", "find_unused_parameters": True}):
        for result in train_on(2, "partly unused", **options):
            assert result["losses"] == pytest.approx(expected["losses"], rel=TOLERANCE)
            assert result["norms"] == pytest.approx(expected["norms"], rel=10 * TOLERANCE)
    with pytest.raises(RanksError) as error:
        train_on(2, "partly unused", strategy="ddp")
    message = "model: the loss does not depend on pooler.weight, pooler.bias, so ddp cannot average their gradients"
    assert f"{message}; freeze them with requires_grad_(False), set parallel.find_unused_parameters" in str(error.value)


def train_on(ranks: int, shape: str, **options: Any) -> list[dict[str, Any]]:
    return on_ranks(f"{__name__}:train", ranks=ranks, shape=shape, options=options)


def train(shape: str, options: dict[str, Any]) -> dict[str, Any]:
    """Train on this rank and return mean losses, norms and the names of all tensors of a checkpoint."""
    step = make_step(shape, **options)
    mesh = step.engine.mesh
    results = [step.run(share(mesh, index), 2) for index in range(STEPS)]
    return {
        "losses": [float(mesh.mean_over_data(result.loss)) for result in results],
        "norms": [float(result.grad_norm) for result in results],
        "names": sorted(step.tensors()),
        "dtypes": sorted({str(value.dtype) for value in step.tensors().values()}),
        "choices": step.engine.choices,
    }


def gather(shape: str, strategy: str) -> tuple[float, float] | None:
    """Return, on rank 0, the loss of a fresh model with the gathered weights, and that of the step which follows."""
    step = make_step(shape, strategy=strategy)
    mesh = step.engine.mesh
    step.run(share(mesh, 0), 2)
    weights = gather_weights(step.engine)
    following = float(step.run(share(mesh, 1), 2).loss)
    if mesh.rank:
        assert weights == {}
        return None
    fresh = make_shape(shape)
    fresh.load_state_dict(weights)
    batch = share(mesh, 1)
    return float(compute_loss(fresh(batch["inputs"]), batch["targets"])), following


def train_frozen(strategy: str) -> tuple[dict[str, torch.Tensor], list[str]]:
    """Return all weights after a few steps, and the names of all tensors of a checkpoint."""
    step = make_step("partly frozen", strategy=strategy)
    for index in range(2):
        step.run(share(step.engine.mesh, index), 2)
    weights = {name: getattr(value, "full_tensor", value.clone)() for name, value in step.engine.named_parameters()}
    return {name: value.detach() for name, value in weights.items()}, list(step.tensors())


def gathered_sizes(shape: str) -> list[int]:
    """Return the number of values that each all-gather of a step collects."""
    from torch.profiler import ProfilerActivity, profile

    step = make_step(shape, strategy="fsdp")
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as recorded:
        step.run(share(step.engine.mesh, 0), BATCH // 2)
    events = recorded.profiler.kineto_results.events()
    return [event.shapes()[0][0] for event in events if event.name() == "c10d::_allgather_base_"]


def make_step(shape: str, dtype: str = "float32", compiled: Any = "none", **options: Any) -> Step:
    parallel = ParallelConfig(**options)
    world = dist.get_world_size()
    recipe = Recipe(parallel, compiled=CompileConfig(mode=compiled, backend="eager"))
    layout = resolve_layout(parallel, world, world)
    mesh = Mesh(layout, dist.get_rank(), torch.device("cpu"), uses_fully_shard=recipe.uses_fully_shard(layout))
    config = Config(name="own", model=MlpConfig(), optimizer=OptimizerConfig(lr=0.01), parallel=parallel)
    return Step(parallelize(make_shape(shape, getattr(torch, dtype)), recipe, mesh), config, StepMeanLoss(mesh))


def share(mesh: Mesh, index: int) -> dict[str, torch.Tensor]:
    """Return this rank's share of a batch in which every token is followed by the next one."""
    first = torch.randint(VOCABULARY, (BATCH, 1), generator=torch.Generator().manual_seed(index))
    tokens = (first + torch.arange(6)) % VOCABULARY
    size = BATCH // mesh.layout.dp_size
    mine = tokens[mesh.dp_rank * size :][:size]
    return {"inputs": mine[:, :-1], "targets": mine[:, 1:]}
