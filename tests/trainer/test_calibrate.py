"""Calibration on real ranks of this CPU: predictions and reports use the profile; other files are not touched."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest

from simulator.__main__ import main
from simulator.calibrate import short_runs
from simulator.job import Job
from simulator.layout import Layout
from simulator.machines.profile import read
from simulator.model import Transformer
from simulator.step.prediction import predict
from tests.trainer.launch import SMALL_LLAMA, alone, assert_finished, forked, lines
from trainer.config.load import load

# By day, tests/simulator has profiles that are written by hand, and the command that reads them.
pytestmark = pytest.mark.nightly

SECONDS = "0.01"
MODEL = Transformer(layers=2, hidden=64, heads=4, kv_heads=4, ffn=192, gated=True, vocab=256, seq=64)


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A profile of two ranks, and of a single process in the same file."""
    folder = tmp_path_factory.mktemp("calibrate")
    options = ["--out", "profile.json", "--seconds", SECONDS]
    for start in (partial(forked, 2), alone):
        with start(options, folder, program="tests.trainer.quick_calibration") as run:
            assert_finished(run)
        assert "calibrate: written: profile.json" in run.output
    assert [path.name for path in folder.iterdir() if not path.name.startswith("log-")] == ["profile.json"]
    return folder / "profile.json"


def calibrate(out: Path) -> int:
    return main(["calibrate", "--out", str(out), "--seconds", SECONDS])


def test_every_figure_is_measured_for_each_number_of_ranks(profile: Path) -> None:
    content = json.loads(profile.read_text())
    assert [(world["nodes"], world["per_node"]) for world in content["worlds"]] == [(1, 1), (1, 2)]
    assert (content["machine"]["device"], content["machine"]["backend"]) == ("cpu", "gloo")
    for world in content["worlds"]:
        assert world["per_core"] == max(1, world["per_node"] / content["machine"]["cores"])
        assert all(seconds > 0 for *_, seconds in world["products"]["fp32"])
        assert all(layer[part] > 0 for layer in world["layers"] for part in ("layer_s", "attention_s", "head_s"))
        assert min(world["checkpoint"].values()) > 0
        # On a busy machine, a deeper run may have been faster once, so the times are not compared.
        assert {name: world[name]["model"]["layers"] for name in short_runs.LAYERS} == short_runs.LAYERS
        assert all(world[name]["step_s"] > world[name]["other_s"] > 0 for name in short_runs.LAYERS)
        assert world["checkpoint"]["wait_gb_s"] >= world["checkpoint"]["write_gb_s"]
    assert content["worlds"][0]["collectives"] == []
    sizes = {(row["op"], row["size"]) for row in content["worlds"][1]["collectives"]}
    assert {op for op, _ in sizes} == {"all_reduce", "all_gather"}
    assert all(row["seconds"] > 0 for row in content["worlds"][1]["collectives"])


def test_predictions_use_the_profile(profile: Path) -> None:
    rates = read(profile)
    for ranks in (1, 2):
        on, steps = rates.of(1, ranks), []
        for samples in (4, 16):
            layout = Layout(dp=ranks, micro_batch=samples, global_batch=samples * ranks, dtype="fp32")
            prediction = predict(MODEL, layout, on.system, on.rates)
            assert (prediction.parts["data"] > 0) == (ranks > 1)
            steps.append(prediction.step_s)
        assert 1e-3 < steps[0] < steps[1] < 4.5 * steps[0]


def test_a_real_run_can_be_reported(profile: Path, tmp_path: Path) -> None:
    arguments = [
        *SMALL_LLAMA,
        "steps=20",
        "batch.size=8",
        "batch.micro=4",
        "parallel.strategy=ddp",
        "checkpoint.every=0",
    ]
    with forked(2, [*arguments, f"run.folder={tmp_path / 'run'}"], tmp_path) as run:
        assert_finished(run)
    assert main(["report", str(tmp_path / "run"), "--profile", str(profile)]) == 0
    (row,) = json.loads((tmp_path / "run" / "predicted" / "report.json").read_text())["runs"]
    assert (row["ranks"], row["nodes"], row["end"]) == (2, 1, "finished")
    (joined,) = [event for event in lines(tmp_path / "run" / "events.jsonl") if event.get("event") == "joined"]
    assert (joined["device"], joined["cpu"]) == ("cpu", json.loads(profile.read_text())["machine"]["cpu"])
    # benchmarks/simulator_local.py measures how close the two are; other tests run at the same time as this one.
    on, job = read(profile).of(1, 2), Job(load(str(tmp_path / "run" / "config.yaml"), []), 4, 4)
    assert row["step_s"]["predicted"] == pytest.approx(predict(job.model, job.layout(2), on.system, on.rates).step_s)
    steps = [line["step_s"] for line in lines(tmp_path / "run" / "metrics" / "rank-00000.jsonl")]
    assert min(steps) <= row["step_s"]["measured"] <= max(steps)


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ("cpu", "is a profile of cpu 'another'; allowed: "),
        ("schema", "has schema 0; allowed: 2; name another file"),
        ("", "is not a profile; allowed: a profile or a new file; name another file"),
    ],
)
def test_a_profile_of_another_machine_is_not_changed(
    profile: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], field: str, message: str
) -> None:
    content = json.loads(profile.read_text())
    if field == "cpu":
        content["machine"]["cpu"] = "another"
    content = content | ({"schema": 0} if field == "schema" else {})
    other = tmp_path / "other.json"
    other.write_text(json.dumps(content if field else []))
    before = other.read_bytes()
    assert (calibrate(other), other.read_bytes()) == (2, before)
    assert f"simulator: --out: {other} {message}" in capsys.readouterr().err
