"""An optimizer step: skipped updates, the order of its parts, and its state in a checkpoint."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from tests.trainer.curves import config_of, global_batch, make_step
from trainer.config.layout import Layout
from trainer.config.load import from_dict
from trainer.config.models import LlamaConfig
from trainer.config.schema import Config, ParallelConfig
from trainer.models.functional import compute_loss
from trainer.parallel.apply import parallelize
from trainer.parallel.engine import Recipe
from trainer.parallel.mesh import Mesh
from trainer.precision import LossScale
from trainer.step import Step

SMALL = ["model.layers=1", "model.dim=16", "model.heads=2", "model.ffn=16", "parallel.strategy=single"]


def test_a_bad_gradient_changes_nothing_and_the_next_step_works() -> None:
    config, step = small_step()
    step.run(global_batch(config, 0), micro=4)
    before = snapshot(step)
    poison(step)
    result = step.run(global_batch(config, 1), micro=4)
    remove_poison(step)
    assert result.skipped == 1
    assert not math.isfinite(result.grad_norm)
    assert all(torch.equal(value, before[name]) for name, value in step.tensors().items())
    assert step.run(global_batch(config, 2), micro=4).skipped == 0


def test_a_bad_gradient_is_used_with_nonfinite_ignore() -> None:
    config, step = small_step("health.nonfinite=ignore")
    poison(step)
    assert step.run(global_batch(config, 0), micro=4).skipped == 0
    remove_poison(step)
    assert any(not value.isfinite().all() for value in step.tensors().values())


def test_the_hook_runs_after_backward_and_before_weights_change() -> None:
    config, step = small_step()
    before = snapshot(step)
    seen = []

    def check() -> None:
        same = all(torch.equal(value, before[name]) for name, value in step.tensors().items())
        seen.append((same, all(value.grad is not None for _, value in step.engine.named_parameters())))

    step.before_update = check
    step.run(global_batch(config, 0), micro=4)
    assert seen == [(True, True)]
    assert not torch.equal(step.tensors()["model.embed.weight"], before["model.embed.weight"])


def test_clipping_shortens_the_update_but_reports_the_norm_before_it() -> None:
    sgd = ("optimizer.name=sgd", "optimizer.momentum=0", "optimizer.weight_decay=0", "optimizer.lr=1")
    config, free = small_step(*sgd, "optimizer.clip_norm=0", "schedule.warmup=0")
    _, clipped = small_step(*sgd, "optimizer.clip_norm=0.01", "schedule.warmup=0")
    start = snapshot(free)
    norms = [float(step.run(global_batch(config, 0), micro=4).grad_norm) for step in (free, clipped)]
    moved = [distance(step, start) for step in (free, clipped)]
    assert norms[0] == norms[1] == pytest.approx(moved[0], rel=1e-4)
    assert moved[1] == pytest.approx(0.01, rel=1e-3)


def test_accumulation_does_not_change_the_step() -> None:
    config, whole = small_step()
    _, pieces = small_step()
    single, several = whole.run(global_batch(config, 0), micro=8), pieces.run(global_batch(config, 0), micro=2)
    assert float(single.loss) == pytest.approx(float(several.loss), abs=1e-6)
    assert float(single.grad_norm) == pytest.approx(float(several.grad_norm), rel=1e-5)


def test_tensors_of_a_checkpoint_have_the_models_own_names() -> None:
    _, step = small_step("precision=fp16")
    names = step.tensors().keys()
    assert {"model.embed.weight", "optim.embed.weight.first", "optim.embed.weight.second"} <= names
    assert {"optim.updates", "scaler.scale", "scaler.good_steps"} <= names
    assert step.saved_tensors().keys() == names


def test_a_run_can_be_resumed_from_tensors_and_state() -> None:
    config, straight = small_step()
    _, resumed = small_step()
    for index in range(2):
        straight.run(global_batch(config, index), micro=4)
    with torch.no_grad():
        for name, value in resumed.tensors().items():
            value.copy_(straight.tensors()[name])
    resumed.load_state(straight.state())
    results = [step.run(global_batch(config, 2), micro=4) for step in (straight, resumed)]
    assert results[0].loss == results[1].loss
    assert results[0].rate == results[1].rate
    assert all(torch.equal(value, straight.tensors()[name]) for name, value in resumed.tensors().items())


def test_dropout_depends_on_seed_and_step_only() -> None:
    losses = []
    for noise in (1, 2):
        config, step = small_step("model.dropout=0.3", preset="tiny-gpt2")
        torch.manual_seed(noise)
        losses.append([float(step.run(global_batch(config, index), micro=4).loss) for index in range(2)])
    assert losses[0] == losses[1]


def test_a_users_own_model_trains() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    recipe = Recipe(ParallelConfig(strategy="single"))
    mesh = Mesh(Layout(), 0, torch.device("cpu"), uses_fully_shard=False)
    step = Step(parallelize(model, recipe, mesh), Config(name="own", model=LlamaConfig(), steps=30), compute_loss)
    batch = {"inputs": torch.randn(12, 4), "targets": torch.arange(12) % 3}
    losses = [float(step.run(batch, micro=12).loss) for _ in range(30)]
    assert losses[-1] < losses[0]
    assert "buffer.1.running_mean" in step.tensors()


def test_the_loss_scale_halves_at_once_and_doubles_after_some_steps() -> None:
    scale = LossScale(torch.device("cpu"), first=8.0, grow_after=3)
    seen = []
    for overflowed in (False, False, True, False, False, False, False):
        scale.update(torch.tensor(overflowed))
        seen.append(float(scale.scale))
    assert seen == [8, 8, 4, 4, 4, 8, 8]


def small_step(*settings: str, preset: str = "tiny-llama") -> tuple[Config, Step]:
    base = [setting for setting in SMALL if preset == "tiny-llama" or "ffn" not in setting]
    config = from_dict(config_of(preset, [*base, *settings]))
    return config, make_step(config)


def poison(step: Step) -> None:
    """Make a gradient NaN in backward."""
    parameter = dict(step.engine.named_parameters())["norm.weight"]
    step.poisoned = parameter.register_hook(lambda gradient: gradient * torch.nan)  # type: ignore[attr-defined]  # an attribute that only these tests use


def remove_poison(step: Step) -> None:
    step.poisoned.remove()  # type: ignore[attr-defined]  # an attribute that only these tests use


def snapshot(step: Step) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in step.tensors().items()}


def distance(step: Step, start: dict[str, torch.Tensor]) -> float:
    parts = [(value.detach() - start[n]).square().sum() for n, value in step.tensors().items() if n.startswith("model")]
    return float(sum(parts).sqrt())
