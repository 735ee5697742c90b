"""The report of runs and predictions: figures, the page in a real browser, and invalid input."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from simulator.__main__ import main
from simulator.job import Job
from simulator.machines.profile import read
from simulator.step.prediction import predict
from tests.simulator import browser, profile_factory, run_factory
from trainer.config.load import load

SIZES = ["model.dim=128", "model.layers=4", "model.heads=4", "model.kv_heads=4", "model.ffn=384"]
SIZES += ["model.vocab_size=1024", "model.seq_len=64", "run.device=cpu", "batch.size=8", "checkpoint.every=0"]
TIMES: dict[int, dict[str, float | None]] = {
    1: {"compute": 130.0, "communication": 0.0, "data": 0.5, "checkpoint": 0.0, "other": 0.5},
    2: {"compute": 70.0, "communication": 14.0, "data": 0.5, "checkpoint": 0.0, "other": 0.5},
    4: {"compute": 40.0, "communication": 19.0, "data": 0.5, "checkpoint": 0.0, "other": 0.5},
}


def run_settings(ranks: int) -> list[str]:
    return [*SIZES, f"batch.micro={8 // ranks}", f"parallel.strategy={'ddp' if ranks > 1 else 'single'}"]


def write_run(folder: Path, ranks: int, **other: Any) -> Path:
    times = other.pop("times", TIMES[ranks])
    return run_factory.run(folder / f"run-{ranks}", run_settings(ranks), times, ranks=ranks, **other)


@pytest.fixture
def without_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw no pictures, which takes most of the time of a report, for tests that look at its figures and texts only."""
    monkeypatch.setattr("simulator.report.figures.draw_picture", lambda *_: None)


def read_report(out: Path) -> dict[str, Any]:
    report: dict[str, Any] = json.loads((out / "report.json").read_text())
    return report


@pytest.fixture(scope="module")
def three_run_report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    profile = profile_factory.write(folder / "profile.json", profile_factory.profile())
    runs = [str(write_run(folder, ranks)) for ranks in TIMES]
    # The report sorts runs by ranks, whatever their order on the command line.
    assert main(["report", *runs[::-1], "--profile", str(profile), "--out", str(folder / "out")]) == 0
    return folder / "out"


def test_report_contains_measured_and_predicted_steps(three_run_report: Path) -> None:
    report = read_report(three_run_report)
    assert [run["ranks"] for run in report["runs"]] == [1, 2, 4]
    profile = read(three_run_report.parent / "profile.json")
    for run in report["runs"]:
        ranks = run["ranks"]
        assert run["step_s"]["measured"] == pytest.approx(sum(v or 0 for v in TIMES[ranks].values()) / 1e3, rel=0.005)
        job, on = Job(load("tiny-llama", run_settings(ranks)), 8 // ranks, 8 // ranks), profile.of(1, ranks)
        predicted_s = predict(job.model, job.layout(ranks), on.system, on.rates).step_s
        assert run["step_s"]["predicted"] == pytest.approx(predicted_s)
        assert run["error"] == pytest.approx(predicted_s / run["step_s"]["measured"] - 1)


def test_parts_add_up_to_the_step(three_run_report: Path) -> None:
    for run in read_report(three_run_report)["runs"]:
        for side in ("predicted", "measured"):
            parts = {part: both[side] for part, both in run["split_s"].items()}
            assert sum(parts.values()) == pytest.approx(run["step_s"][side])
            assert min(parts.values()) >= 0


def test_efficiency_and_speed_up_refer_to_the_smallest_run(three_run_report: Path) -> None:
    single, two, four = read_report(three_run_report)["runs"]
    assert single["efficiency"] == {"predicted": 1.0, "measured": 1.0}
    assert two["efficiency"]["measured"] == pytest.approx(131 / 85 / 2, rel=0.005)
    assert four["speed_up"]["measured"] == pytest.approx(131 / 60, rel=0.005)
    assert 0.4 < four["efficiency"]["predicted"] < 0.95
    ratio = single["step_s"]["predicted"] / four["step_s"]["predicted"]
    assert four["speed_up"]["predicted"] == pytest.approx(ratio)


def test_exposed_communication_and_utilisation(three_run_report: Path) -> None:
    four = read_report(three_run_report)["runs"][2]
    assert four["exposed_communication"]["measured"] == pytest.approx(19 / 60, rel=0.005)
    assert four["mfu"]["measured"] == pytest.approx(0.3)
    slower = four["step_s"]["predicted"] / four["step_s"]["measured"]
    assert four["mfu"]["predicted"] == pytest.approx(0.3 / slower)


def test_pictures_are_written(three_run_report: Path) -> None:
    names = {path.stem for path in three_run_report.glob("*.png")}
    assert names == {"time-split", "efficiency", "speed-up", "communication", "utilisation"}
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in three_run_report.glob("*.png"))


@pytest.mark.parametrize("width", [1280, 390])
def test_page_renders_in_a_browser(three_run_report: Path, width: int) -> None:
    view = browser.view_page(three_run_report / "index.html", width)
    assert view.width == width
    assert view.wide <= view.width, "the page does not scroll sideways"
    assert (view.pictures, view.shown, view.outside) == (5, 5, 0)
    assert (view.cut, view.wrong, view.fetched) == ([], [], [])
    assert "Predicted and measured · 3 runs on 1, 2, 4 ranks · cpu as calibrated (profile.json)" in view.text
    assert "Change first, on 4 ranks: " in view.text


def test_single_run_has_no_scaling_pictures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    profile = profile_factory.write(tmp_path / "profile.json", profile_factory.profile())
    assert main(["report", str(write_run(tmp_path, 2)), "--profile", str(profile)]) == 0
    out = tmp_path / "run-2" / "predicted"
    assert {path.name for path in out.iterdir()} == {"time-split.png", "report.json", "index.html"}
    assert str(out / "index.html") in capsys.readouterr().out
    assert browser.view_page(out / "index.html", 1280).shown == 1


def test_unfinished_run_is_compared_and_noted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    profile = profile_factory.write(tmp_path / "profile.json", profile_factory.profile())
    run = write_run(tmp_path, 2, steps=40, finished=False)
    assert main(["report", str(run), "--profile", str(profile)]) == 0
    note = "tiny-llama on 2 ranks is not finished (no end recorded): step 40 of 60; compared by its last 20 records"
    assert f"note: {note}" in capsys.readouterr().out
    report = read_report(run / "predicted")
    assert report["notes"] == [note]
    assert report["runs"][0]["step_s"]["measured"] == pytest.approx(0.085, rel=0.005)
    assert note in (run / "predicted" / "index.html").read_text()


@pytest.mark.nightly
def test_models_with_the_same_name_are_distinguished(tmp_path: Path) -> None:
    profile = profile_factory.write(tmp_path / "profile.json", profile_factory.profile())
    times = {**TIMES[2], "communication": None}
    runs = [write_run(tmp_path, ranks, times=times if ranks > 1 else TIMES[1]) for ranks in TIMES]
    wide = ["model.layers=8", *run_settings(2)[2:], "model.dim=128"]
    runs.append(run_factory.run(tmp_path / "wide", wide, TIMES[2], ranks=2))
    assert main(["report", *map(str, runs), "--profile", str(profile), "--out", str(tmp_path / "out")]) == 0
    report = read_report(tmp_path / "out")
    assert report["notes"][0].startswith("tiny-llama (1.12 M, fp32) on 2, 4 ranks did not measure communication")
    assert [run["efficiency"]["measured"] == 1 for run in report["runs"]] == [True, False, False, True]
    assert browser.view_page(tmp_path / "out" / "index.html", 1280).cut == []


def test_cpu_ranks_need_no_memory_for_a_cuda_context(tmp_path: Path) -> None:
    profile = profile_factory.write(tmp_path / "profile.json", profile_factory.profile((4,), memory_gb=4.0))
    run = write_run(tmp_path, 4)
    assert main(["report", str(run), "--profile", str(profile)]) == 0
    assert read_report(run / "predicted")["notes"] == []


def test_unmeasured_communication_is_null(tmp_path: Path) -> None:
    profile = profile_factory.write(tmp_path / "profile.json", profile_factory.profile())
    run = write_run(tmp_path, 2, times={**TIMES[2], "compute": 84.0, "communication": None})
    assert main(["report", str(run), "--profile", str(profile)]) == 0
    report = read_report(run / "predicted")
    assert report["runs"][0]["exposed_communication"] is None
    assert report["runs"][0]["split_s"]["communication"]["measured"] is None
    assert "did not measure communication, so it is inside compute: set metrics.profile_every" in report["notes"][0]


ADVICE: list[tuple[dict[str, float | None], list[str], str]] = [
    (
        {**TIMES[2], "data": 60.0},
        [],
        "Raise data.workers (now 2) and data.ahead (2): 60.0 ms of a step of 144.5 ms",
    ),
    (
        {**TIMES[2], "checkpoint": 80.0},
        ["checkpoint.every=10"],
        "Raise checkpoint.every from 10 to 40: saves take 80.0 ms of a step of 165.0 ms, 60.0 ms (36%)",
    ),
    (
        {**TIMES[2], "communication": 300.0},
        [],
        "Investigate communication before changing settings: it takes 300.0 ms of a step",
    ),
    ({**TIMES[2], "compute": 180.0}, [], "Investigate compute before changing settings: it takes 180.0 ms of a step"),
]


@pytest.mark.usefixtures("without_pictures")
@pytest.mark.parametrize(("times", "more", "text"), ADVICE)
def test_advice_names_the_first_change(
    tmp_path: Path, times: dict[str, float | None], more: list[str], text: str
) -> None:
    profile = profile_factory.write(tmp_path / "profile.json", profile_factory.profile())
    run = run_factory.run(tmp_path / "run", [*run_settings(2), *more], times, ranks=2, noise=0.0)
    assert main(["report", str(run), "--profile", str(profile)]) == 0
    assert read_report(run / "predicted")["change_first"].startswith(text)


@pytest.mark.usefixtures("without_pictures")
def test_advice_states_the_gain_of_a_setting(tmp_path: Path) -> None:
    profile = profile_factory.write(tmp_path / "profile.json", profile_factory.profile())
    run = write_run(tmp_path, 4)
    assert main(["report", str(run), "--profile", str(profile)]) == 0
    report = read_report(run / "predicted")
    assert report["change_first"].startswith(
        "Accumulate gradients: batch.size 32 instead of 8, if the loss allows it: "
    )
    assert report["change_first"].endswith("samples a second.")
    shares = [change["saves_share"] for change in report["runs"][0]["changes"]]
    assert shares == sorted(shares, reverse=True)


def test_gpu_run_is_compared_by_instance_type(tmp_path: Path) -> None:
    times: dict[str, float | None] = {
        "compute": 4000.0, "communication": 200.0, "data": 1.0, "checkpoint": 1.0, "other": 1.0,
    }  # fmt: skip
    peak = {"peak": 989.4e12, "source": "data sheet of NVIDIA H100 80GB HBM3", "achieved": 700e12}
    settings = ["batch.size=64", "batch.micro=1", "parallel.strategy=fsdp", "precision=bf16", "checkpoint.every=500"]
    run = run_factory.run(tmp_path / "run", settings, times, ranks=16, hosts=2, preset="llama-8b", mfu=0.4, peak=peak)
    assert main(["report", str(run), "--instance", "p5.48xlarge"]) == 0
    (row,) = read_report(run / "predicted")["runs"]
    assert (row["nodes"], row["ranks"]) == (2, 16)
    assert 0.5 < row["step_s"]["predicted"] / row["step_s"]["measured"] < 2
    assert row["split_s"]["checkpoint"]["predicted"] == pytest.approx(12 * 8.03 / (25 * 16) / 500, rel=0.01)


def test_run_of_another_machine_is_rejected(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    profile = profile_factory.write(tmp_path / "profile.json", profile_factory.profile(device="NVIDIA H200"))
    run = write_run(tmp_path, 2)
    assert main(["report", str(run), "--profile", str(profile)]) == 2
    error = capsys.readouterr().err
    assert f"profile.machine.device: 'NVIDIA H200' in {profile}; allowed: 'cpu', the device that {run} ran on" in error


@pytest.mark.usefixtures("without_pictures")
def test_machine_much_slower_than_the_profile_is_noted(tmp_path: Path) -> None:
    profile = profile_factory.write(tmp_path / "profile.json", profile_factory.profile())
    run = write_run(tmp_path, 2, peak={"peak": 1e12, "source": "given", "achieved": 20e9})
    assert main(["report", str(run), "--profile", str(profile)]) == 0
    (note,) = read_report(run / "predicted")["notes"]
    text = "reached 20 GFLOP/s a rank in its trial product, the profile has 50: a different machine, or a busy one"
    assert note == f"tiny-llama on 2 ranks {text}"


@pytest.mark.usefixtures("without_pictures")
@pytest.mark.parametrize(
    ("cpu", "gflops", "expected"),
    [
        ("synthetic", 50, []),
        ("synthetic", 20, ["the profile has 50: the same processor, busy with other work in one of the two"]),
        ("AMD EPYC 7R13", 50, ["ran on 'AMD EPYC 7R13', the profile is of 'synthetic': calibrate that machine (make "]),
        ("AMD EPYC 7R13", 20, ["ran on 'AMD EPYC 7R13', the profile is of 'synthetic': calibrate that machine (make "]),
    ],
)
def test_recorded_processor_is_compared_with_the_profile(
    tmp_path: Path, cpu: str, gflops: int, expected: list[str]
) -> None:
    profile = profile_factory.write(tmp_path / "profile.json", profile_factory.profile())
    peak = {"peak": 1e12, "source": "given", "achieved": gflops * 1e9}
    run = run_factory.run(
        tmp_path / "run", [*run_settings(2), "run.device=auto"], TIMES[2], ranks=2, peak=peak, cpu=cpu
    )
    assert main(["report", str(run), "--profile", str(profile)]) == 0
    notes = read_report(run / "predicted")["notes"]
    assert len(notes) == len(expected)
    assert all(text in note for text, note in zip(expected, notes, strict=True))


def test_automatic_device_counts_as_cpu_if_recorded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = run_factory.run(tmp_path / "run", [*run_settings(2), "run.device=auto"], TIMES[2], ranks=2, cpu="synthetic")
    assert main(["report", str(run), "--instance", "p5.48xlarge"]) == 2
    assert "ran on 'cpu'; allowed: none" in capsys.readouterr().err


def invalid_commands(folder: Path) -> list[tuple[list[str], str]]:
    profile = str(profile_factory.write(folder / "profile.json", profile_factory.profile((1,))))
    run = str(write_run(folder, 2))
    (folder / "empty").mkdir()
    silent = run_factory.run(folder / "silent", run_settings(2), TIMES[2], ranks=2, steps=0)
    for path in (silent / "metrics").iterdir():
        path.unlink()
    return [
        (
            [str(folder / "none"), "--profile", profile],
            "RUN: .*none is not a folder; give the folder of a run, such as runs/NAME$",
        ),
        ([str(folder / "empty"), "--profile", profile], "RUN: .*empty has neither .*events.jsonl"),
        ([str(silent), "--profile", profile], "RUN: .*silent has no steps in metrics.*allowed: a run that trained"),
        (
            [run, "--profile", str(folder / "none.json")],
            r"profile\.file: .*none.json cannot be read .No such file.*allowed",
        ),
        ([run, "--profile", profile], r"profile\.worlds: 1 nodes x 2 ranks were not measured.*allowed: 1 x 1"),
        ([run, "--instance", "p5.96xlarge"], r"instance: .*p5\.96xlarge.*p5\.48xlarge"),
        ([run, "--instance", "p5.48xlarge"], r"--instance: 'p5.48xlarge' has h100, .* ran on 'cpu'; allowed: none"),
    ]


@pytest.mark.parametrize("number", range(7))
def test_invalid_input_is_rejected(tmp_path: Path, capsys: pytest.CaptureFixture[str], number: int) -> None:
    given, message = invalid_commands(tmp_path)[number]
    assert main(["report", *given]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert re.search(message, output.err), output.err


def test_report_requires_a_profile_or_an_instance(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["report", str(tmp_path)])
    assert "one of the arguments --profile --instance is required" in capsys.readouterr().err
