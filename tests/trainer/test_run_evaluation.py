"""A run that evaluates: when, what is recorded, which checkpoint is the best, and that training does not change."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.trainer.curves import make_step
from tests.trainer.launch import (
    SMALL_LLAMA,
    checkpoint_steps,
    digests,
    events,
    forked,
    lines,
    losses,
    outcome,
)
from trainer.__main__ import main
from trainer.api import Trainer
from trainer.config.errors import ConfigError
from trainer.config.load import load
from trainer.evaluation.evaluator import Evaluator
from trainer.life import stop
from trainer.life.outcome import Code
from trainer.metrics.json_lines import read_lines
from trainer.models.functional import IGNORED_TARGET
from trainer.models.shape import shape_of

EVALUATED = ["data.samples=200", "evaluation.share=0.1", "batch.size=8", "batch.micro=2"]
ALONE = ["parallel.strategy=single", *EVALUATED]


def test_steps_are_evaluated_and_recorded(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "run"
    settings = [f"run.folder={folder}", "steps=5", "evaluation.every=2", "metrics.tensorboard=true"]
    assert main([*SMALL_LLAMA, *ALONE, *settings]) == Code.FINISHED
    assert [line["step"] for line in evaluations(folder)] == [2, 4, 5]
    assert {"loss", "perplexity", "accuracy", "samples", "seconds"} < set(evaluations(folder)[0])
    assert [event["loss"] for event in events(folder, "evaluated")] == [line["loss"] for line in evaluations(folder)]
    assert "evaluation at step 5: loss " in capfd.readouterr().out
    assert any(b"evaluation/perplexity" in file.read_bytes() for file in (folder / "tensorboard").iterdir())
    # A run that has ended has nothing to do.
    assert main([*SMALL_LLAMA, *ALONE, *settings]) == Code.FINISHED
    assert [line["step"] for line in evaluations(folder)] == [2, 4, 5]


def test_evaluation_changes_no_bit_of_training(tmp_path: Path) -> None:
    """Both runs train on the same samples: the second one evaluates on a folder of its own."""
    text, shards = tmp_path / "text", tmp_path / "shards"
    text.write_text("0123456789" * 100)
    assert main(["prepare", str(text), "--out", str(shards), "--workers", "1"]) == 0
    data = ["data.kind=tokens", f"data.path={shards}", "model.vocab_size=257"]
    settings = [*SMALL_LLAMA, *data, "steps=4", "batch.size=8", "parallel.strategy=single"]
    assert main([*settings, f"run.folder={tmp_path / 'plain'}"]) == Code.FINISHED
    evaluating = [f"evaluation.path={shards}", "evaluation.every=1", "evaluation.samples=10"]
    assert main([*settings, *evaluating, f"run.folder={tmp_path / 'evaluated'}"]) == Code.FINISHED
    assert [line["samples"] for line in evaluations(tmp_path / "evaluated")] == [10] * 4
    assert losses(tmp_path / "evaluated") == losses(tmp_path / "plain")
    assert digests(tmp_path / "evaluated", 4) == digests(tmp_path / "plain", 4)


@pytest.mark.nightly_cases("loss-min")
@pytest.mark.parametrize(("metric", "direction"), [("loss", min), ("accuracy", max)])
def test_the_best_checkpoint_is_kept_by_the_evaluation_and_exported(
    metric: str, direction: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    # A learning rate that is much too high from step 3 on makes the model worse.
    settings = ["steps=6", "checkpoint.every=1", "checkpoint.keep=1", f"checkpoint.best={metric}"]
    settings += ["checkpoint.asynchronous=false"]
    worse = ["optimizer.lr=0.5", "schedule.kind=linear", "schedule.warmup=6", "optimizer.clip_norm=0"]
    assert main([*SMALL_LLAMA, *ALONE, *settings, *worse, "evaluation.every=100", f"run.folder={folder}"]) == 0
    figures = {line["step"]: line[metric] for line in evaluations(folder)}
    # Every step is evaluated although every=100, because every step is saved.
    assert sorted(figures) == [1, 2, 3, 4, 5, 6]
    best = max(step for step in figures if figures[step] == direction(figures.values()))
    assert best != 6
    assert checkpoint_steps(folder) == [best, 6]
    for source in (folder, folder / "checkpoints"):
        capfd.readouterr()
        assert main(["export", "--best", str(source), str(tmp_path / "out")]) == 0
        assert f"exported {folder}/checkpoints/step-{best:08d} to" in capfd.readouterr().out


def test_a_stop_ends_an_evaluation(tmp_path: Path) -> None:
    """An evaluation that would take minutes is left when the run is asked to stop, and the run is saved."""
    settings = ["steps=100", "data.samples=4000000", "evaluation.share=0.5", "evaluation.every=1", "run.folder=run"]
    with forked(2, [*SMALL_LLAMA, "batch.size=8", "batch.micro=4", *settings], tmp_path) as run:
        run.until(lambda: losses(tmp_path / "run") != {}, "the first step")
        (tmp_path / "run" / "stop").write_text("enough")
        assert run.wait() == Code.STOPPED, run.output
    assert evaluations(tmp_path / "run") == []
    assert checkpoint_steps(tmp_path / "run") == [1]


@pytest.mark.nightly_cases("during")
@pytest.mark.parametrize(("place", "method"), [(Trainer, "run_step"), (Evaluator, "run")], ids=["before", "during"])
def test_a_resumed_run_makes_up_for_an_evaluation_that_a_stop_prevented(
    place: type, method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = [*SMALL_LLAMA, *ALONE, "steps=5", "evaluation.every=2"]
    straight, stopped = tmp_path / "straight", tmp_path / "stopped"
    assert main([*settings, f"run.folder={straight}"]) == Code.FINISHED
    with monkeypatch.context() as patched:
        stop_in(patched, place, method)
        assert main([*settings, f"run.folder={stopped}"]) == Code.REQUEUE
    assert checkpoint_steps(stopped) == [2]
    assert evaluations(stopped) == []
    assert main([*settings, f"run.folder={stopped}"]) == Code.FINISHED
    assert [figures(line) for line in evaluations(stopped)] == [figures(line) for line in evaluations(straight)]
    assert [line["step"] for line in evaluations(stopped)] == [2, 4, 5]
    assert losses(stopped) == losses(straight)
    assert digests(stopped, 5) == digests(straight, 5)


def stop_in(patched: pytest.MonkeyPatch, place: type, method: str) -> None:
    """Send the cluster's warning at step 2: after its optimizer step, or as its evaluation begins."""
    run = getattr(place, method)

    def run_and_stop(target: Any, *arguments: Any) -> Any:
        if place is Evaluator:
            signal.raise_signal(signal.SIGUSR1)
        result = run(target, *arguments)
        if place is Trainer and target.step == 2:
            signal.raise_signal(signal.SIGUSR1)
        return result

    patched.setattr(place, method, run_and_stop)


def test_a_set_shorter_than_a_batch_is_evaluated_exactly(tmp_path: Path) -> None:
    results = []
    for batch, micro in ((8, 8), (4, 1)):
        folder = tmp_path / f"run-{micro}"
        settings = ["data.samples=60", "evaluation.share=0.05", f"batch.size={batch}", f"batch.micro={micro}"]
        settings += ["optimizer.lr=0", f"run.folder={folder}", "steps=1", "parallel.strategy=single"]
        assert main([*SMALL_LLAMA, *settings]) == Code.FINISHED
        results.append(figures(evaluations(folder)[0]))
    assert results[0]["samples"] == 3
    assert results[0] == pytest.approx(results[1], rel=1e-6)


class NoTargets:
    """A data set of samples in which every token ends a document."""

    fingerprint, is_remote, length = "", False, 3

    @property
    def group_sizes(self) -> Any:
        return np.array([self.length])

    def fetch(self, ids: Any, epoch: int | None) -> Any:
        return {"inputs": np.zeros((len(ids), 64), np.int64), "targets": np.full((len(ids), 64), IGNORED_TARGET)}


def test_a_set_without_a_target_is_named(tmp_path: Path) -> None:
    settings = ["data.kind=tokens", "data.path=unused", f"evaluation.path={tmp_path}", "parallel.strategy=single"]
    config = load("tiny-llama", settings)
    evaluator = Evaluator(make_step(config).engine, NoTargets(), config, micro=2)
    with pytest.raises(ConfigError) as caught:
        evaluator.run()
    problem = f"evaluation.path: {tmp_path} gives 3 samples, but no token to predict in any of them; use documents of"
    assert str(caught.value).startswith(problem)


def test_a_run_that_never_saves_is_not_requeued_at_its_time_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "stop").write_text("time limit")
    # The listener reads the stop file once a second.
    monkeypatch.setattr(stop, "_POLL_S", 0.01)
    settings = [f"run.folder={folder}", "parallel.strategy=single", "checkpoint.every=never", "steps=100000"]
    assert main([*SMALL_LLAMA, *settings]) == Code.STOPPED
    assert outcome(folder)["reason"] == "time limit; not requeued: checkpoint.every=never, so the run would start over"


def test_a_run_that_never_saves_needs_no_space(small_disk: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = small_disk / "run"
    arguments = [*SMALL_LLAMA, "model.dim=128", "model.ffn=512", "steps=2", "parallel.strategy=single"]
    arguments += [f"run.folder={folder}"]
    assert main([*arguments, "checkpoint.every=0"]) == Code.BAD_INPUT
    assert "and one checkpoint needs" in capfd.readouterr().err
    assert main([*arguments, "checkpoint.every=never"]) == Code.FINISHED
    assert not (folder / "checkpoints").exists()
    assert sorted(losses(folder)) == [1, 2]


def test_the_mfu_of_images_counts_convolutions(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    arguments = ["tiny-resnet", *SMALL_LLAMA[5:], "steps=2", "parallel.strategy=single", "checkpoint.every=never"]
    assert main([*arguments, f"run.folder={folder}"]) == Code.FINISHED
    flops = 6 * shape_of(load("tiny-resnet", []).model).products
    line = read_lines(folder / "metrics" / "rank-00000.jsonl")[-1]
    assert line["mfu"] == pytest.approx(flops * line["images_per_s"] / 1e12)


def evaluations(folder: Path) -> list[dict[str, Any]]:
    return lines(folder / "metrics" / "evaluation-00000.jsonl")


def figures(line: dict[str, Any]) -> dict[str, Any]:
    """Return a result without its times."""
    return {name: value for name, value in line.items() if name not in ("time", "seconds")}
