"""A run on a mixture: what is recorded of each source, and a resume after the mixture was changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.trainer.launch import SMALL_LLAMA, digests, events, lines
from trainer.__main__ import main
from trainer.life.outcome import Code


def make_shards(folder: Path, name: str, text: str) -> Path:
    (folder / f"{name}.txt").write_text(text)
    assert main(["prepare", str(folder / f"{name}.txt"), "--out", str(folder / name), "--workers", "1"]) == 0
    return folder / name


def test_a_source_without_a_sample_in_a_step_has_no_loss(tmp_path: Path) -> None:
    web, code = make_shards(tmp_path, "web", "0123456789" * 100), make_shards(tmp_path, "code", "abc()[]" * 100)
    settings = [*SMALL_LLAMA, "data.kind=tokens", "model.vocab_size=257", "batch.size=1", "parallel.strategy=single"]
    run = tmp_path / "run"
    assert main([*settings, f"data.mixture=[{web}=1, {code}=1]", "steps=4", f"run.folder={run}"]) == Code.FINISHED
    losses = [
        {name: value for name, value in line.items() if name.startswith("loss")}
        for line in lines(run / "metrics" / "rank-00000.jsonl")
    ]
    assert {tuple(values) for values in losses} == {("loss", "loss/web"), ("loss", "loss/code")}
    # The loss of a source is summed in fp64.
    assert all(max(values.values()) == pytest.approx(min(values.values()), rel=1e-6) for values in losses)
    alone = [*settings, "steps=1", f"run.folder={tmp_path / 'alone'}"]
    assert main([*alone, f"data.mixture=[{web}=1]"]) == Code.FINISHED
    assert "loss/web" not in lines(tmp_path / "alone" / "metrics" / "rank-00000.jsonl")[0]


def test_each_source_is_counted_and_evaluated_and_a_changed_one_is_named(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    web, code = make_shards(tmp_path, "web", "0123456789" * 100), make_shards(tmp_path, "code", "abc()[]" * 100)
    settings = [*SMALL_LLAMA, "data.kind=tokens", "model.vocab_size=257", "batch.size=8", "parallel.strategy=single"]
    settings += ["evaluation.share=0.2", "evaluation.every=3"]
    mixture = f"data.mixture=[{web}=0.75, {code}=0.25]"
    straight, resumed = tmp_path / "straight", tmp_path / "resumed"
    assert main([*settings, mixture, "steps=6", f"run.folder={straight}"]) == Code.FINISHED
    output = capfd.readouterr().out
    assert "mixture: web: 75.0% of the samples, 36 in this run, which is 0.72 epochs of its 50" in output
    assert [
        (line["samples/web"], line["samples/code"]) for line in lines(straight / "metrics" / "rank-00000.jsonl")
    ] == [(6 * step, 2 * step) for step in range(1, 7)]
    steps = lines(straight / "metrics" / "rank-00000.jsonl")
    for line in steps:
        assert 0.75 * line["loss/web"] + 0.25 * line["loss/code"] == pytest.approx(line["loss"])
        assert line["loss/web"] != line["loss/code"]
    first, last = lines(straight / "metrics" / "evaluation-00000.jsonl")
    assert last["loss"] == pytest.approx(0.75 * last["loss/web"] + 0.25 * last["loss/code"])
    assert last["loss/web"] != last["loss/code"]
    assert first["samples"] == last["samples"] == 12 + 9

    # A resumed run is the same, bit for bit.
    assert main([*settings, mixture, "steps=6", f"run.folder={resumed}", "checkpoint.every=3"]) == Code.FINISHED
    for folder in (resumed / "checkpoints").glob("*6"):
        folder.rename(tmp_path / "later")
    assert main([*settings, mixture, "steps=6", f"run.folder={resumed}"]) == Code.FINISHED
    assert digests(resumed, 6) == digests(straight, 6)
    names = ("loss", "loss/web", "loss/code")
    again = lines(resumed / "metrics" / "rank-00000.jsonl")
    assert [[line[name] for name in names] for line in again] == [[line[name] for name in names] for line in steps]
    assert "DATA CHANGED" not in capfd.readouterr().out

    changed = f"data.mixture=[{web}=0.5, {code}=0.25]"
    assert main([*settings, changed, "steps=7", f"run.folder={straight}"]) == Code.FINISHED
    assert "DATA CHANGED since the checkpoint: weight of source web 0.75 then, 0.5 now" in capfd.readouterr().out
    assert len(events(straight, "data_changed")) == 1
