"""Optimizers on several ranks: Muon under every strategy, and state that is saved, resumed and resharded exactly."""

from __future__ import annotations

import weakref
from hashlib import sha256
from itertools import product
from pathlib import Path
from typing import Any, get_args, get_type_hints
from unittest.mock import patch

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tests.trainer.checkpoint_state import open_checkpoints, save_and_wait
from tests.trainer.curves import config_of, global_batch, make_step
from tests.trainer.ranks import on_ranks
from tests.trainer.test_optimizer import gradients, parameters
from trainer.checkpoint.checkpoints import Checkpoints
from trainer.config.errors import ConfigError
from trainer.config.layout import resolve_layout
from trainer.config.load import from_dict
from trainer.config.schema import OptimizerConfig, ParallelConfig
from trainer.optimizers import orthogonalize, sizes
from trainer.optimizers.optimizer import Optimizer
from trainer.parallel.gradients import to_local
from trainer.parallel.mesh import Mesh
from trainer.step import Step

HERE = "tests.trainer.test_optimizer_ranks"
# Five matrices of one shape on four ranks; one shape has fewer rows than ranks, another is not divisible by them.
SHAPES = {**{f"layers.{n}": (10, 6) for n in range(5)}, "short": (3, 64), "tall": (64, 3), "bias": (6,)}
LLAMA = ["model.dim=32", "model.ffn=64", "model.heads=4", "model.kv_heads=4", "model.vocab_size=64", "model.layers=2"]
LLAMA += ["batch.size=16", "optimizer.clip_norm=0.3"]
STRATEGIES = {"ddp": {}, "fsdp": {}, "hsdp": {"shard": 2}}
# Each optimizer and format of its moments, and the strategy of the ranks that save and resume it.
STATES = {
    ("adamw", "fp32"): "fsdp",
    ("adamw", "bf16"): "hsdp shard=2",
    ("adamw", "int8"): "fsdp",
    ("muon", "fp32"): "hsdp shard=2",
    ("muon", "bf16"): "fsdp",
    ("muon", "int8"): "ddp",
    ("sgd", "fp32"): "hsdp shard=2",
    ("sgd", "bf16"): "fsdp",
    ("sgd", "int8"): "ddp",
}
DAILY_STATES = (("adamw", "int8"), ("muon", "fp32"))
# Muon rounds to bf16, so sums over ranks in another order change the update by up to a rounding error of bf16.
LOSS_TOLERANCE = 1e-4


def nightly(*values: Any) -> Any:
    return pytest.param(*values, marks=pytest.mark.nightly)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_muon_updates_matrices_like_one_rank(strategy: str) -> None:
    expected = update_on_rank("single", {})
    for gathered in (orthogonalize.GATHERED_VALUES, 50):
        arguments = {"strategy": strategy, "options": STRATEGIES[strategy], "gathered": gathered}
        for result in on_ranks(f"{HERE}:update_on_rank", **arguments):
            assert result == expected


@pytest.mark.parametrize("moments", ["fp32", "int8"])
@pytest.mark.parametrize("strategy", ["ddp", "hsdp"])
def test_muon_needs_no_more_memory_than_estimated_on_any_number_of_replicas(strategy: str, moments: str) -> None:
    arguments = {"strategy": strategy, "options": STRATEGIES[strategy], "moments": moments}
    for peak, estimate in on_ranks(f"{HERE}:measure_update_on_rank", **arguments):
        assert estimate / 4 < peak <= estimate


@pytest.mark.parametrize(
    ("strategy", "steps"),
    [
        # By day, the test above compares the updates that make the difference.
        *(nightly(strategy, 20) for strategy in ("ddp", "fsdp zero=1", "fsdp", "hsdp shard=2", "ddp pipeline=2")),
    ],
)
def test_muon_trains_like_one_rank(strategy: str, steps: int) -> None:
    settings = [*LLAMA, "optimizer.name=muon", "optimizer.lr=0.003"]
    alone = config_of("tiny-llama", [*settings, "parallel.strategy=single"])
    arguments = {"micro": 2, "steps": steps}
    (expected,) = on_ranks("tests.trainer.curves:curve", ranks=1, config=alone, **arguments)
    config = config_of("tiny-llama", [*settings, *spread_settings(strategy)])
    for curves in on_ranks("tests.trainer.curves:curve", config=config, **arguments):
        assert curves["loss"] == pytest.approx(expected["loss"], abs=LOSS_TOLERANCE)
    assert expected["loss"][-1] < expected["loss"][-5]


@pytest.mark.parametrize(
    ("optimizer", "moments"), [state if state in DAILY_STATES else nightly(*state) for state in STATES]
)
def test_state_is_saved_resumed_and_resharded_exactly(optimizer: str, moments: str, tmp_path: Path) -> None:
    strategy = STATES[optimizer, moments]
    settings = [*LLAMA, f"optimizer.name={optimizer}", f"optimizer.moments={moments}"]
    config = config_of("tiny-llama", [*settings, *spread_settings(strategy)])
    saved, trained = zip(*on_ranks(f"{HERE}:train_and_save", config=config, path=tmp_path), strict=True)
    assert on_ranks(f"{HERE}:load_and_train", config=config, path=tmp_path) == list(trained)
    other = config_of("tiny-llama", [*settings, "parallel.strategy=fsdp"])
    assert set(on_ranks(f"{HERE}:load", ranks=2, config=other, path=tmp_path)) == set(saved)
    alone = config_of("tiny-llama", [*settings, "parallel.strategy=single"])
    assert set(on_ranks(f"{HERE}:load", ranks=1, config=alone, path=tmp_path)) == set(saved)
    assert len(set(saved)) == len(set(trained)) == 1


def test_every_optimizer_and_format_is_resumed() -> None:
    hints = get_type_hints(OptimizerConfig)
    assert set(STATES) == set(product(get_args(hints["name"]), get_args(hints["moments"])))


def test_a_checkpoint_of_another_optimizer_is_refused_by_name(tmp_path: Path) -> None:
    def make(*settings: str) -> Step:
        return make_step(from_dict(config_of("tiny-mlp", ["parallel.strategy=single", *settings])))

    checkpoints = Checkpoints(tmp_path)
    saved = make()
    saved.optimizer.tensors()["head.weight.second"].fill_(1.001)
    save_and_wait(checkpoints, 1, saved.tensors())
    checkpoint = checkpoints.newest()
    assert checkpoint is not None
    for setting, difference in (
        ("optimizer.name=sgd", "missing in the checkpoint: optim."),
        ("optimizer.moments=int8", "missing in the checkpoint: optim."),
    ):
        with pytest.raises(ConfigError) as raised:
            checkpoints.load(checkpoint, make(setting).tensors())
        (problem,) = raised.value.problems
        assert problem.where == "optimizer"
        assert f"has the state of another optimizer: {difference}" in problem.message
    rounded = make("optimizer.moments=bf16")
    checkpoints.load(checkpoint, rounded.tensors())
    checkpoints.close()
    moment = rounded.optimizer.tensors()["head.weight.second"]
    assert moment.dtype == torch.bfloat16
    assert torch.equal(moment, torch.ones_like(moment))


def update_on_rank(strategy: Any, options: dict[str, Any], gathered: int = orthogonalize.GATHERED_VALUES) -> str:
    """Give the ranks the same gradients in each step and return a digest of the whole parameters."""
    with patch.object(orthogonalize, "GATHERED_VALUES", gathered):
        return update_and_digest(strategy, options)


def update_and_digest(strategy: Any, options: dict[str, Any]) -> str:
    mesh = make_mesh(strategy, options)
    values = {name: torch.nn.Parameter(spread(value.detach(), mesh)) for name, value in parameters(SHAPES).items()}
    optimizer = Optimizer(values.items(), OptimizerConfig(name="muon"), mesh)
    for step in range(3):
        for name, gradient in gradients(step, SHAPES).items():
            values[name].grad = spread(gradient, mesh)
        optimizer.step(1e-2, torch.tensor(2.0), torch.tensor(0.0), seed=step)
    return digest({**values, **optimizer.tensors()})


def measure_update_on_rank(strategy: Any, options: dict[str, Any], moments: Any) -> tuple[int, int]:
    """Return the most bytes that an update of eight matrices allocated at a time, and the estimate."""
    shapes = {f"layers.{n}": (64, 96) for n in range(8)}
    mesh, config = make_mesh(strategy, options), OptimizerConfig(name="muon", moments=moments)
    values = {name: torch.nn.Parameter(spread(value.detach(), mesh)) for name, value in parameters(shapes).items()}
    optimizer = Optimizer(values.items(), config, mesh)
    for name, gradient in gradients(0, shapes).items():
        values[name].grad = spread(gradient, mesh)
    stored = [*values.values(), *(value.grad for value in values.values()), *optimizer.tensors().values()]
    with patch.object(orthogonalize, "GATHERED_VALUES", 64 * 96), patch.object(sizes, "GATHERED_VALUES", 64 * 96):
        with AllocatedBytes([to_local(value) for value in stored if value is not None]) as allocated:
            optimizer.step(1e-2, torch.tensor(2.0), torch.tensor(0.0))
        return allocated.peak, sizes.count_update_bytes(shapes.items(), config)


class AllocatedBytes(TorchDispatchMode):
    """The most bytes that results of operations took at a time, without the storages of given tensors."""

    def __init__(self, stored: list[torch.Tensor]) -> None:
        super().__init__()
        self.peak = 0
        self._stored = {tensor.untyped_storage().data_ptr() for tensor in stored}
        self._results: list[weakref.ref[torch.Tensor]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        results = result if isinstance(result, list | tuple) else [result]
        self._results += [weakref.ref(value) for value in results if isinstance(value, torch.Tensor)]
        alive = [value for reference in self._results if (value := reference()) is not None]
        self._results = [weakref.ref(value) for value in alive]
        storages = {value.untyped_storage().data_ptr(): value.untyped_storage().nbytes() for value in alive}
        self.peak = max(self.peak, sum(size for start, size in storages.items() if start not in self._stored))
        return result


def spread_settings(strategy: str) -> list[str]:
    name, *options = strategy.split()
    return [f"parallel.strategy={name}", *(f"parallel.{option}" for option in options)]


def train_and_save(config: dict[str, Any], path: Path) -> tuple[str, str]:
    """Return digests of the state when it was saved, and of the state two steps later."""
    step = make_step(from_dict(config))
    train(step, config, range(2))
    saved = digest(step.tensors())
    checkpoints = open_checkpoints(path)
    save_and_wait(checkpoints, 2, step.saved_tensors())
    checkpoints.close()
    train(step, config, range(2, 4))
    return saved, digest(step.tensors())


def load_and_train(config: dict[str, Any], path: Path) -> str:
    step = load_step(config, path)
    train(step, config, range(2, 4))
    return digest(step.tensors())


def load(config: dict[str, Any], path: Path) -> str:
    return digest(load_step(config, path).tensors())


def load_step(config: dict[str, Any], path: Path) -> Step:
    step = make_step(from_dict(config))
    checkpoints = open_checkpoints(path)
    checkpoint = checkpoints.newest()
    assert checkpoint is not None
    checkpoints.load(checkpoint, step.tensors())
    checkpoints.close()
    step.load_state({"step": 2})
    return step


def train(step: Step, config: dict[str, Any], steps: range) -> None:
    settings, mesh = from_dict(config), step.engine.mesh
    size = settings.batch.size // mesh.layout.dp_size
    for index in steps:
        batch = {key: value[mesh.dp_rank * size :][:size] for key, value in global_batch(settings, index).items()}
        step.run(batch, micro=2)


def make_mesh(strategy: Any, options: dict[str, Any]) -> Mesh:
    import torch.distributed as dist

    world = dist.get_world_size() if dist.is_initialized() else 1
    rank = dist.get_rank() if dist.is_initialized() else 0
    layout = resolve_layout(ParallelConfig(strategy=strategy, **options), world, world)
    return Mesh(layout, rank, torch.device("cpu"), uses_fully_shard=strategy in ("fsdp", "hsdp"))


def spread(value: torch.Tensor, mesh: Mesh) -> torch.Tensor:
    """Return this rank's part of a tensor, placed as fully_shard places parameters."""
    if mesh.layout.shard == 1:
        return value
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    placements = [Shard(0)] if mesh.layout.replicate == 1 else [Replicate(), Shard(0)]
    return distribute_tensor(value, mesh.submesh("replicate", "shard"), placements)


def digest(tensors: dict[str, torch.Tensor]) -> str:
    """Return a digest of the whole tensors; every rank must call it."""
    hasher = sha256()
    for name, value in sorted(tensors.items()):
        whole: Any = value.full_tensor() if hasattr(value, "full_tensor") else value
        hasher.update(
            name.encode() + to_local(whole).detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
        )
    return hasher.hexdigest()
