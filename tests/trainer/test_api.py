"""Train a user's own model with `Trainer`: it learns, saves and resumes bit for bit, alone and on two ranks."""

from __future__ import annotations

import json
import math
import os
import random
import signal
import socket
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.trainer.checkpoint_state import find_writer
from tests.trainer.launch import assert_finished, forked
from tests.trainer.own_rank import BATCH, OPTIMIZER, STEPS, Own, batch_of, own_model, train
from tests.trainer.own_shapes import VOCABULARY, make_shape
from trainer.__main__ import main
from trainer.api import Trainer
from trainer.config.errors import ConfigError
from trainer.config.schema import CompileConfig, OptimizerConfig, ParallelConfig, ScheduleConfig
from trainer.models.functional import IGNORED_TARGET
from trainer.step import StepAbandoned


def make_trainer(folder: Path, model: nn.Module | None = None, **options: Any) -> Trainer:
    options = {"optimizer": OPTIMIZER, "folder": folder, "device": "cpu", **options}
    return Trainer(model if model is not None else own_model(0), **options)


def test_the_loss_falls_and_metrics_report_it(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, schedule=ScheduleConfig(kind="constant"), precision="bf16", micro_batch=2)
    assert trainer.metrics() == {"step": 0.0}
    first, *_, last = train(trainer, 60)
    assert last < first / 2
    loss = trainer.train_step(batch_of(0, 0, 1))
    metrics = trainer.metrics()
    assert metrics.keys() == {"step", "loss", "grad_norm", "skipped", "lr", "samples_per_s", "memory_gb"}
    assert (metrics["step"], metrics["loss"], metrics["lr"], metrics["skipped"]) == (61, float(loss), 0.01, 0)
    assert metrics["samples_per_s"] > 0
    trainer.close()


@pytest.mark.parametrize("strategy", ["single", "ddp", "fsdp"])
def test_a_loaded_checkpoint_continues_bit_for_bit(strategy: str, tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, strategy=strategy)
    assert trainer.load_checkpoint() is None
    train(trainer, 3)
    trainer.save_checkpoint(extra={"epoch": 4})
    undisturbed = train(trainer, 5)
    weights = weights_of(trainer)
    trainer.close()

    again = make_trainer(tmp_path, model=own_model(99), strategy=strategy)
    assert again.load_checkpoint() == {"epoch": 4}
    assert again.step == 3
    assert train(again, 5) == undisturbed
    for name, value in weights_of(again).items():
        assert torch.equal(value, weights[name]), name
    again.close()


def test_generators_of_a_resumed_run_continue_where_they_were(tmp_path: Path) -> None:
    """A script may draw its batches and its model may draw numbers from any of the three generators."""

    def make() -> Trainer:
        return make_trainer(tmp_path, model=Noisy())

    def draw_batch() -> dict[str, torch.Tensor]:
        inputs = torch.randn(BATCH, 6) + draw()
        return {"inputs": inputs, "targets": torch.randint(3, (BATCH,))}

    def train_drawn(trainer: Trainer) -> list[Any]:
        losses = [float(trainer.train_step(draw_batch())) for _ in range(3)]
        return [*losses, torch.rand(1).item(), draw()]

    trainer = make()
    trainer.train_step(draw_batch())
    trainer.save_checkpoint()
    undisturbed = train_drawn(trainer)
    trainer.close()
    again = make()
    again.load_checkpoint()
    assert train_drawn(again) == undisturbed
    again.close()


class Noisy(Own):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x * draw() + torch.randn_like(x))


def draw() -> float:
    return float(np.random.rand()) + random.random()


@pytest.mark.parametrize("strategy", ["single", "fsdp"])
def test_a_tied_frozen_bf16_model_continues_bit_for_bit(strategy: str, tmp_path: Path) -> None:
    def make() -> Trainer:
        model: Any = make_shape("nanogpt", torch.bfloat16)
        model.transformer["wpe"].requires_grad_(False)
        return make_trainer(tmp_path, model=model, strategy=strategy)

    tokens = torch.arange(BATCH * 4).view(BATCH, 4) % VOCABULARY
    batch = {"inputs": tokens, "targets": (tokens + 1) % VOCABULARY}
    trainer = make()
    trainer.train_step(batch)
    trainer.save_checkpoint()
    undisturbed = [float(trainer.train_step(batch)) for _ in range(3)]
    lines = trainer.describe()
    assert [line for line in lines if line.startswith("units: 3 x Layer (transformer.h.0 ")] == lines[
        : strategy != "single"
    ]
    assert any(line.startswith("weights: stored as fp32, the model has bfloat16") for line in lines)
    trainer.close()

    again = make()
    again.load_checkpoint()
    assert [float(again.train_step(batch)) for _ in range(3)] == undisturbed
    for name, value in weights_of(again).items():
        assert torch.equal(value, weights_of(trainer)[name]), name
    again.close()


def test_ignored_targets_do_not_depend_on_micro_batches(tmp_path: Path) -> None:
    batch = batch_of(0, 0, 1)
    batch["targets"][:5] = -100
    norms = []
    for micro in (BATCH, 2):
        trainer = make_trainer(tmp_path, model=own_model(0).eval(), micro_batch=micro)
        trainer.train_step(batch)
        norms.append(trainer.metrics()["grad_norm"])
        trainer.close()
    assert norms[0] == pytest.approx(norms[1], rel=1e-5)


def test_a_model_factory_and_a_users_own_loss_can_be_used(tmp_path: Path) -> None:
    def distance(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return (outputs - targets).square().mean()

    options = {"optimizer": OptimizerConfig(name="sgd", lr=0.1, momentum=0.0, weight_decay=0.0, clip_norm=0.0)}
    trainer = make_trainer(tmp_path, loss=distance, schedule=ScheduleConfig(kind="constant"), **options)
    by_hand = own_model(0)
    assert isinstance(by_hand, Own)
    lazily = Trainer(lambda: own_model(0), loss=distance, folder=tmp_path / "lazily", device="cpu", **options)
    inputs, targets = torch.randn(BATCH, 6), torch.randn(BATCH, 3)
    for each in (trainer, lazily):
        each.train_step({"inputs": inputs, "targets": targets})
        each.close()
    assert weights_of(trainer).keys() == {f"model.{name}" for name, _ in by_hand.named_parameters()}
    for name, value in weights_of(trainer).items():
        assert torch.equal(value, weights_of(lazily)[name])


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_a_skipped_update_does_not_change_statistics(precision: str, tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, model=make_normed_model(), precision=precision, micro_batch=4)
    good = {"inputs": torch.randn(8, 6), "targets": torch.arange(8) % 3}
    trainer.train_step(good)
    before = statistics_of(trainer)
    trainer.train_step({**good, "inputs": good["inputs"].clone().fill_(torch.inf)})
    assert trainer.metrics()["skipped"] == 1
    assert all(torch.equal(value, before[name]) for name, value in statistics_of(trainer).items())
    trainer.train_step(good)
    assert trainer.metrics()["skipped"] == 0
    after = statistics_of(trainer)
    assert len(after) == 6
    assert all(value.isfinite().all() and not torch.equal(value, before[name]) for name, value in after.items())
    trainer.close()


def test_an_abandoned_step_changes_nothing_that_is_saved(tmp_path: Path) -> None:
    def abandon(_index: int, _count: int) -> None:
        raise StepAbandoned("stop requested")

    trainer = make_trainer(tmp_path, model=make_normed_model(), micro_batch=4)
    batch = {"inputs": torch.randn(8, 6), "targets": torch.arange(8) % 3}
    trainer.train_step(batch)
    before = weights_of(trainer)
    assert int(before["buffer.1.num_batches_tracked"]) == 2
    trainer.engine.before_micro_batch = abandon
    with pytest.raises(StepAbandoned):
        trainer.train_step(batch)
    assert [name for name, value in weights_of(trainer).items() if not torch.equal(value, before[name])] == []
    trainer.close()


def make_normed_model() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3), nn.BatchNorm1d(3))


def test_a_failed_save_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    trainer = make_trainer(tmp_path / "file")
    train(trainer, 1)
    with pytest.raises(OSError, match=r"step 1 was NOT saved: Not a directory .*; training continues, "):
        trainer.save_checkpoint()
    train(trainer, 1)
    trainer.close()


def test_a_save_that_takes_too_long_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer.api.SAVE_TIMEOUT_S", 0.1)
    trainer = make_trainer(tmp_path)
    train(trainer, 1)
    trainer.prepare_saves()
    writer = find_writer(os.getpid())
    os.kill(writer, signal.SIGSTOP)
    with pytest.raises(OSError, match=r"step 1 was NOT saved within 0.1 s; check the filesystem of .*/checkpoints$"):
        trainer.save_checkpoint()
    os.kill(writer, signal.SIGCONT)
    trainer.close()


def test_an_unknown_strategy_is_rejected() -> None:
    with pytest.raises(ConfigError) as raised:
        Trainer(own_model(0), strategy="zero4")
    expected = "strategy: 'zero4' is not a strategy for your own model; use one of single, ddp, fsdp, hsdp, or a"
    assert str(raised.value) == f"{expected} ParallelConfig"


@pytest.mark.parametrize(
    ("arguments", "message"),
    {
        "precision": (
            {"precision": "bfloat16"},
            "precision: 'bfloat16' is not allowed; allowed: fp32, bf16, fp16 (did",
        ),
        "optimizer": ({"optimizer": {"lr": 0.1}}, "optimizer: is a dict; pass trainer.config.schema.OptimizerConfig("),
        "compile": ({"compile": "blocks"}, "compile: is a str; pass trainer.config.schema.CompileConfig(...), or None"),
        "rate": ({"optimizer": OptimizerConfig(lr=-1.0)}, "optimizer.lr: -1.0 is below 0; set it to 0 or more"),
        "steps": ({"steps": 0}, "steps: 0 is below 1; set it to 1 or more"),
        "keep": ({"keep": 0}, "checkpoint.keep: 0 is below 1"),
        "device": ({"device": "gpu"}, "run.device: 'gpu' is not allowed; allowed: auto, cpu, cuda"),
        "micro_batch": ({"micro_batch": 0}, "micro_batch: 0 is below 1; use 1 or more, or None"),
        "zero": ({"strategy": ParallelConfig(strategy="fsdp", zero=4)}, "parallel.zero: 4 is not allowed"),
        "auto": ({"strategy": ParallelConfig(recompute="full")}, "parallel.strategy: auto, which is chosen from the"),
        "offload": (
            {"strategy": ParallelConfig(strategy="ddp", offload=True)},
            "parallel.offload: ddp does not support offload; set parallel.strategy to fsdp or hsdp, or",
        ),
        "shard": (
            {"strategy": ParallelConfig(strategy="fsdp", shard=2)},
            "parallel.shard: 2, but the strategy is fsdp",
        ),
        "unused": (
            {"strategy": ParallelConfig(strategy="fsdp", find_unused_parameters=True)},
            "parallel.find_unused_parameters: true, but the strategy is fsdp",
        ),
        "whole": (
            {"strategy": "fsdp", "compile": CompileConfig(mode="whole")},
            "compile.mode: whole, but fsdp runs code between the blocks; use blocks",
        ),
        "warmup": ({"schedule": ScheduleConfig(kind="inverse_sqrt")}, "schedule.warmup: 0, but inverse_sqrt decays"),
        "folder": ({"folder": "runs/{date}"}, "run.folder: {date} is not a placeholder"),
        "best": (
            {"best": "accuraccy"},
            "checkpoint.best: 'accuraccy' is not allowed; allowed: empty, loss, perplexity",
        ),
    }.values(),
)
def test_invalid_settings_are_rejected_before_anything_is_built(
    arguments: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError) as caught:
        Trainer(nn.Module(), **{"folder": tmp_path / "run", "device": "cpu", **arguments})
    assert message in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_numbers_of_numpy_and_any_folder_name_are_accepted(tmp_path: Path) -> None:
    folder = tmp_path / ".my run"
    trainer = make_trainer(folder, optimizer=OptimizerConfig(lr=np.float32(0.5)))
    train(trainer, 1)
    trainer.save_checkpoint()
    trainer.close()
    assert trainer.config.name == "my-run"
    assert [path.name for path in (folder / "checkpoints").iterdir()] == ["step-00000001"]


@pytest.mark.parametrize("command", [["export", "RUN", "OUT"], ["evaluate", "RUN"]])
def test_commands_that_build_the_model_name_the_run_of_an_own_model(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, out = tmp_path / "run", tmp_path / "out"
    trainer = make_trainer(run, strategy="fsdp")
    trainer.save_checkpoint()
    trainer.close()
    arguments = [{"RUN": str(run), "OUT": str(out)}.get(argument, argument) for argument in command]
    assert main(arguments) == 2
    where = {"export": "FROM", "evaluate": "RUN"}[command[0]]
    expected = f"trainer: {where}: {run} was trained from Python with a model of its own, Own; call trainer."
    assert expected in capsys.readouterr().err
    assert not out.exists()


def test_two_ranks_learn_the_same_as_one(tmp_path: Path) -> None:
    alone = make_trainer(tmp_path / "alone", model=own_model(0).eval())
    expected = train(alone, 2 * STEPS)
    alone.close()
    folder = tmp_path / "two"
    folder.mkdir()
    with forked(2, [str(folder)], tmp_path, program="tests.trainer.own_rank") as run:
        assert_finished(run)
    ddp, fsdp = ([read(folder / f"{strategy}-{rank}.json") for rank in (0, 1)] for strategy in ("ddp", "fsdp"))
    assert ddp[0]["losses"] == ddp[1]["losses"]
    assert fsdp[0]["losses"] == fsdp[1]["losses"]
    assert ddp[0]["before"] is None
    assert fsdp[0]["before"] == {"losses": ddp[0]["losses"]}
    assert [*ddp[0]["losses"], *fsdp[0]["losses"]] == pytest.approx(expected, rel=1e-5)
    assert fsdp[0]["metrics"]["step"] == 2 * STEPS
    # Without agreement, the ranks of fsdp would wait for each other forever.
    expected_error = "batches: rank 0 has 2, other ranks have more; pass the same number of batches on every rank"
    assert {result["refused"] for result in (*ddp, *fsdp)} == {expected_error}


def statistics_of(trainer: Trainer) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in trainer.model_tensors().items() if name.startswith("buffer.")}


def weights_of(trainer: Trainer) -> dict[str, Any]:
    tensors = trainer.model_tensors().items()
    return {name: getattr(value, "to_local", value.clone)().clone() for name, value in tensors}


def read(path: Path) -> Any:
    return json.loads(path.read_text())


def test_held_out_batches_are_evaluated(tmp_path: Path) -> None:
    torch.manual_seed(0)
    trainer = Trainer(nn.Sequential(nn.Dropout(0.5), nn.Linear(6, 3)), folder=tmp_path, device="cpu")
    inputs, targets = torch.randn(7, 6), torch.tensor([0, 1, 2, 0, 1, 2, IGNORED_TARGET])
    batches = [{"inputs": inputs[part], "targets": targets[part]} for part in (slice(0, 4), slice(4, 7))]
    weight = [parameter.detach().clone() for _, parameter in trainer.engine.named_parameters()]
    figures = trainer.evaluate(batches)
    outputs = nn.functional.linear(inputs[:6], *weight)
    assert figures["loss"] == pytest.approx(float(nn.functional.cross_entropy(outputs, targets[:6])), rel=1e-6)
    assert figures["accuracy"] == pytest.approx(float((outputs.argmax(1) == targets[:6]).float().mean()))
    assert figures["perplexity"] == pytest.approx(math.exp(figures["loss"]))
    assert trainer.evaluate(lambda: iter(batches)) == figures
    assert trainer.step == 0
    with pytest.raises(ConfigError, match="batches: there is no batch with a target to evaluate on; pass at least one"):
        trainer.evaluate([])
    trainer.close()


def test_the_engine_knows_the_host_of_each_rank(tmp_path: Path) -> None:
    trainer = Trainer(nn.Linear(2, 2), folder=tmp_path, device="cpu")
    trainer.close()
    assert trainer.engine.mesh.hosts == (socket.gethostname(),)


def test_a_loss_of_the_user_is_averaged_over_samples(tmp_path: Path) -> None:
    trainer = Trainer(nn.Linear(2, 1), loss=lambda out, _: out.sum() * 0 + len(out), folder=tmp_path, device="cpu")
    sizes = (3, 1)
    batches = [{"inputs": torch.zeros(size, 2), "targets": torch.zeros(size)} for size in sizes]
    assert trainer.evaluate(batches) == {"loss": (3 * 3 + 1 * 1) / 4}
    trainer.close()


def test_the_best_checkpoint_is_kept(tmp_path: Path) -> None:
    trainer = Trainer(nn.Linear(2, 2), folder=tmp_path, device="cpu", keep=1, best="accuracy")
    for metric in (0.1, 0.9, 0.5, 0.4):
        trainer.train_step({"inputs": torch.zeros(2, 2), "targets": torch.zeros(2, dtype=torch.int64)})
        trainer.save_checkpoint(metric=metric)
    trainer.close()
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["step-00000002", "step-00000004"]
