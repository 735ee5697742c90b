"""`python -m trainer evaluate`: the figures of the run itself, on any number of ranks, and clear refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.launch import SMALL_LLAMA, assert_finished, forked, lines
from trainer.__main__ import main
from trainer.evaluation import command
from trainer.life.outcome import Code

SETTINGS = ["steps=2", "data.samples=100", "evaluation.share=0.1", "batch.size=8", "batch.micro=2"]


def test_a_checkpoint_evaluates_to_the_figures_of_its_run(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "run"
    assert main([*SMALL_LLAMA, *SETTINGS, f"run.folder={folder}", "parallel.strategy=single"]) == Code.FINISHED
    recorded = lines(folder / "metrics" / "evaluation-00000.jsonl")[-1]
    capfd.readouterr()
    assert main(["evaluate", str(folder), "--json"]) == 0
    figures = json.loads(capfd.readouterr().out)
    names = ("step", "loss", "accuracy", "perplexity", "samples")
    assert {name: figures[name] for name in names} == {name: recorded[name] for name in names}
    assert figures["checkpoint"] == str(folder / "checkpoints" / "step-00000002")

    assert main(["evaluate", str(folder / "checkpoints" / "step-00000002"), "evaluation.samples=3"]) == 0
    assert "step-00000002: loss " in (out := capfd.readouterr().out)
    assert "(3 samples in " in out

    assert main(["evaluate", "--best", str(folder)]) == 2
    assert "--best: " in (error := capfd.readouterr().err)
    assert "checkpoint.best is not set; leave --best out for the newest one" in error

    # Two ranks evaluate what one has trained.
    with forked(2, ["evaluate", str(folder), "--json", "parallel.strategy=fsdp"], tmp_path) as run:
        assert_finished(run)
    (line,) = [line for line in run.output.splitlines() if line.startswith("{")]
    assert json.loads(line)["loss"] == pytest.approx(recorded["loss"], rel=1e-6)


def test_the_best_checkpoint_is_evaluated(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    # With this rate, the loss grows: the first checkpoint is the best one.
    growing = ["steps=3", "checkpoint.every=1", "checkpoint.best=loss", "evaluation.every=1", "optimizer.lr=3"]
    arguments = [*SMALL_LLAMA, *SETTINGS, *growing, f"run.folder={tmp_path}", "parallel.strategy=single"]
    assert main([*arguments, "health.spike=ignore", "schedule.warmup=0"]) == Code.FINISHED, capfd.readouterr().err
    recorded = {line["step"]: line["loss"] for line in lines(tmp_path / "metrics" / "evaluation-00000.jsonl")}
    best = min(recorded, key=recorded.__getitem__)
    assert best < 3, recorded
    capfd.readouterr()
    assert main(["evaluate", "--best", str(tmp_path), "--json"]) == 0
    figures = json.loads(capfd.readouterr().out)
    assert (figures["step"], figures["loss"]) == (best, recorded[best])


def test_a_long_evaluation_reports_its_progress_and_can_be_interrupted(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main([*SMALL_LLAMA, *SETTINGS, f"run.folder={tmp_path}", "parallel.strategy=single"]) == Code.FINISHED
    capfd.readouterr()
    monkeypatch.setattr(command, "_PROGRESS_S", 0.0)
    assert main(["evaluate", str(tmp_path)]) == 0
    assert "evaluated 1 of 5 batches, about " in (error := capfd.readouterr().err)
    assert "evaluated 5 of 5 batches, about 0 s left" in error

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(command._Progress, "__call__", interrupt)
    assert main(["evaluate", str(tmp_path)]) == 130
    assert capfd.readouterr().err.splitlines()[-1].startswith("trainer: interrupted; evaluation.samples=N")


@pytest.mark.parametrize(
    "settings",
    [
        "single pipeline=2",
        *(pytest.param(name, marks=pytest.mark.nightly) for name in ("single context=2", "ddp expert=2")),
    ],
)
def test_one_process_evaluates_what_several_ranks_have_trained(
    settings: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    strategy, option = settings.split()
    preset, *small = SMALL_LLAMA
    arguments = ["tiny-moe" if "expert" in option else preset, *small, *SETTINGS, f"run.folder={folder}"]
    arguments += [f"parallel.strategy={strategy}", f"parallel.{option}"]
    with forked(2, arguments, tmp_path) as run:
        assert_finished(run)
    recorded = lines(folder / "metrics" / "evaluation-00000.jsonl")[-1]
    assert main(["evaluate", str(folder), "--json"]) == 0
    figures: dict[str, Any] = json.loads(capfd.readouterr().out)
    assert figures["loss"] == pytest.approx(recorded["loss"], rel=1e-6)
    assert figures["accuracy"] == recorded["accuracy"]


def test_one_process_evaluates_what_ddp_has_trained_with_options_of_its_own(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    parallel = ["parallel.strategy=ddp", "parallel.find_unused_parameters=true", "parallel.reduce=bf16"]
    assert main([*SMALL_LLAMA, *SETTINGS, *parallel, f"run.folder={tmp_path}"]) == Code.FINISHED
    assert main(["evaluate", str(tmp_path)]) == 0, capfd.readouterr().err


def test_what_cannot_be_evaluated_is_rejected(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "run"
    assert main(["evaluate", str(folder)]) == 2
    assert f"RUN: there is no folder {folder}; use a run's folder" in capfd.readouterr().err
    assert main(["evaluate", str(tmp_path)]) == 2
    assert f"RUN: {tmp_path} contains no checkpoint" in capfd.readouterr().err
    arguments = [*SMALL_LLAMA, "steps=1", f"run.folder={folder}", "parallel.strategy=single"]
    assert main(arguments) == Code.FINISHED
    for overrides, message in (
        ([], "evaluation: the settings of the run have no evaluation set; add evaluation.path=FOLDER"),
        (["evaluation.share=0.1"], "evaluation.share: 0.1, but the run held out 0 and trained on the other samples; l"),
        (["evaluation.shar=1"], "evaluation.shar: no such setting; did you mean evaluation.share?"),
        (["evaluation.path=x"], "evaluation.path: 'x', but synthetic data has no folder"),
    ):
        assert main(["evaluate", str(folder), *overrides]) == 2
        assert message in capfd.readouterr().err
