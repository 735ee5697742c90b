"""The command `python -m simulator plan`."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from simulator.commands.plan import main
from simulator.machines import stacks
from simulator.search.fastest import FastestLayouts, find_fastest
from simulator.search.space import Counts, Space
from trainer.config import load

USUAL = ["--model", "llama-8b", "--tokens", "1e12", "--stack", "aws-p5en-lustre", "--nodes", "4,64"]


@pytest.fixture(scope="module", autouse=True)
def _search_machines_once() -> Iterator[None]:
    """Search the layouts of the same machines once: most tests differ in what is made of the result."""
    results: dict[str, tuple[FastestLayouts, Counts]] = {}

    def find_once(space: Space) -> FastestLayouts:
        own = replace(space, counts=Counts())
        name = repr(own)
        if name not in results:
            results[name] = (find_fastest(own), own.counts)
        fastest, counts = results[name]
        space.counts.considered += counts.considered
        space.counts.timed += counts.timed
        return fastest

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("simulator.search.plan.find_fastest", find_once)
        yield


def test_missing_options_error_has_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--model", "llama-8b"])
    assert capsys.readouterr().err.splitlines()[-1] == (
        "python -m simulator plan: error: the following arguments are required: --tokens, --stack/-s; "
        "for example: --model llama-8b --tokens 1e12 --stack aws-p5en-lustre"
    )


def test_table_has_a_chosen_row_with_its_settings(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*USUAL, "--deadline", "90d"]) == 0
    out = capsys.readouterr().out
    assert "row 2 is the cheapest within 90.0 d: 4 x p5en.48xlarge on-demand" in out
    assert 'trainer: {"batch": {"size": 512' in out
    assert "stack: groups.h200.count: 4, budget.usd_per_hour: " in out
    assert "matrix products" in out


def test_json_has_the_same_figures(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*USUAL, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert [row["nodes"] for row in answer["front"]] == [64, 4]
    for row in answer["front"]:
        low, middle, high = row["wall_s"]
        assert low < middle < high
        assert row["trainer"]["base"] == "llama-8b"
        assert row["stack_edit"].startswith(f"groups.h200.count: {row['nodes']}")
        assert sum(row["parts_s"].values()) == pytest.approx(row["step_s"][1])


def test_files_and_picture_are_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = tmp_path / "plan.png"
    assert main([*USUAL, "--write", str(tmp_path / "out"), "--picture", str(picture)]) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    folders = sorted(folder.name for folder in (tmp_path / "out").iterdir() if folder.is_dir())
    assert folders == ["01-64xp5en.48xlarge-on-demand", "02-4xp5en.48xlarge-on-demand"]
    config = load.load(str(tmp_path / "out" / folders[0] / "train.yaml"), [])
    assert config.name == "llama-8b-512gpus"
    assert json.loads((tmp_path / "out" / "plan.json").read_text())["model"] == "llama-8b"
    assert "wrote" in capsys.readouterr().err


def test_step_of_the_chosen_row_is_traced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "step.json"
    assert main([*USUAL, "--json", "--trace", str(out)]) == 0
    output = capsys.readouterr()
    answer = json.loads(output.out)
    chosen = answer["front"][answer["chosen"] - 1]
    ends = [event["ts"] + event["dur"] for event in json.loads(out.read_text())["traceEvents"] if event["ph"] == "X"]
    assert max(ends) / 1e6 == pytest.approx(chosen["step_s"][1], rel=0.02)
    assert "events of a step of" in output.err


def test_larger_filesystem_is_planned_and_written_to_the_stack(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*USUAL, "--shared-gb", "19200", "--write", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "at the 4.7 GB/s of /shared" in out
    assert "storage.shared.size_gb: 19200" in out
    for file in tmp_path.glob("*/Pulumi.aws-p5en-lustre.yaml"):
        assert stacks.spec_of(file).storage["shared"].size_gb == 19200


def test_any_includes_models_the_trainer_does_not_support(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--model", "deepseek-v2", *USUAL[2:], "--any"]) == 0
    out = capsys.readouterr().out
    assert "! no trainer config: the trainer does not support this model" in out
    assert "no trainer config: the trainer does not support this model\nstack: " in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "lama-8b"], "model: 'lama-8b' is not known; did you mean llama-8b"),
        (["--model", "lama-8b"], "\n  allowed: bloom-176b, "),
        (["--model", "resnet50"], "model: resnet has no tokens to plan by"),
        (["--tokens", "-5"], "tokens: -5 is outside of 1 to 1e+15"),
        (["--tokens", "many"], "tokens: 'many' is not a number"),
        (["--tokens", "1e30"], "tokens: 1e30 is outside"),
        (["--tokens", "nan"], "tokens: nan is outside"),
        (["--stack", "aws-p5en-luster"], "did you mean aws-p5en-lustre"),
        (["-s", "aws-p5en-luster"], "did you mean aws-p5en-lustre"),
        (["--stack", "local"], "stack: the simulator knows no machines of target local, only those of aws; "),
        (["--stack", "local"], "or with make `STACK=aws-p5en-lustre`\n  allowed: aws-existing-vpc, aws-full, "),
        (["--instance", "p5.48xlrge"], "instance: 'p5.48xlrge' is not in the catalog; nearest: p5.48xlarge"),
        (["--nodes", "0"], "nodes: 0 is outside of 1 to 1024"),
        (["--nodes", "9..3"], "nodes: 9..3 is outside"),
        (["--nodes", "two"], "nodes: 'two' is not a number of nodes; write 16, 4,8,12 or 1..128"),
        (["--nodes", "5000"], "nodes: 5000 is outside"),
        (["--batch", "0"], "batch: '0' is not a number of samples"),
        (["--batch", "7", "--nodes", "3"], "batch: 7 to 7 samples cannot be divided over"),
        (["--deadline", "soon"], "deadline: 'soon' is not a duration"),
        (["--deadline", "0d"], "deadline: '0d' is not a duration"),
        (["--budget", "-1"], "budget: -1 is not above 0"),
        (["--group", "h100"], "group: 'h100' is not a group; allowed: h200"),
        (["--deadline", "1h"], "deadline: 1.0 h cannot be met within --nodes; the fastest option takes "),
        (["--shared-gb", "0"], "shared-gb: 0; allowed: 1200, or a multiple of 2400, up to 1000000; choose"),
        (["--shared-gb", "2400000"], "shared-gb: 2400000; allowed: 1200, or a multiple of 2400, up to 1000000"),
        (["--shared-gb", "5000"], "shared-gb: 5000 is not sold; allowed: 1200, or a multiple of 2400"),
        (["--shared-gb", "4800", "--stack", "aws-g6-pair"], "shared-gb: 4800; the stack has no fsx-lustre at /shared"),
        (["--trace", "step.txt"], "--trace: 'step.txt'; allowed: a name that ends with .json or .png"),
        (["--trace", "/nosuch/step.json"], "--trace: /nosuch/step.json; "),
        (["--trace", "/proc/step.json"], "--trace: /proc/step.json cannot be written (/proc: "),
        (
            ["--picture", "/nosuch/x.png"],
            "--picture: /nosuch/x.png; there is no folder /nosuch; allowed: a file in an existing ",
        ),
        (["--picture", "x.jpgx"], "--picture: 'x.jpgx'; allowed: a name that ends with .png or .svg or .pdf; write "),
        (["--write", "/proc/x"], "--write: /proc/x cannot be written (/proc: "),
        (["--budget", "100"], "budget: 100 USD is not enough for any option; the cheapest costs "),
    ],
)
def test_invalid_arguments_are_rejected(
    arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "116")
    assert main([*USUAL, *arguments]) == 2
    err = capsys.readouterr().err
    assert err.startswith("simulator: ")
    assert message in err
    assert "Traceback" not in err


def test_all_invalid_arguments_are_reported_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(
            [
                "--model",
                "lama-8b",
                "--tokens",
                "abc",
                "--stack",
                "local",
                "--nodes",
                "0",
                "--budget",
                "x",
                "--batch",
                "0",
            ]
        )
        == 2
    )
    starts = [line.split(":")[1].strip() for line in capsys.readouterr().err.splitlines()]
    assert starts == ["model", "batch", "tokens", "nodes", "budget", "stack"]


@pytest.mark.parametrize(
    "option", [["--picture", "/nosuch/x.png"], ["--trace", "/proc/x.json"], ["--write", "/proc/x"]]
)
def test_unwritable_output_is_rejected_before_the_search(
    option: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("simulator.commands.plan.plan", lambda *_: pytest.fail("searched"))
    assert main([*USUAL, *option]) == 2
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(("place", "message"), [("/dev/full", "simulator: output: No space left on device; ")])
def test_late_output_error_prints_no_traceback(place: str, message: str) -> None:
    command = [sys.executable, "-m", "simulator", "plan", *USUAL, "--json"]
    with Path(place).open("w") as full:
        result = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert result.returncode == 2
    assert result.stderr.startswith(message)
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("columns", [70, 80, 100, 140])
@pytest.mark.parametrize("limit", [["--deadline", "90d"], ["--budget", "100"], ["--model", "lama-8b"]])
def test_output_fits_the_terminal(
    columns: int, limit: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    main([*USUAL, *limit])
    output = capsys.readouterr()
    assert max(map(len, (output.out + output.err).splitlines())) <= columns


def test_lines_are_below_120_columns_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--model", "llama-405b", *USUAL[2:6], "--nodes", "256,512"]) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) < 120


@pytest.mark.parametrize(("option", "unit"), [(["--deadline", "1h"], " d on 64 x "), (["--budget", "100"], " USD, ")])
def test_nearest_result_is_printed_once(option: list[str], unit: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*USUAL, *option]) == 2
    err = " ".join(capsys.readouterr().err.split())
    assert unit in err
    assert "p5en.48xlarge on-demand" in err
    nearest = err.split("; ")[1]
    assert (nearest.count(" USD"), nearest.count(" d "), nearest.count("steps")) == (1, 1, 0)


@pytest.mark.parametrize(
    ("limit", "message"),
    [
        (["--deadline", "90d"], "saved every 6.9 min, which loses the least time to failures"),
        (
            ["--deadline", "9d"],
            "saved every 6.9 min, as often as the filesystem should take it (failures alone would call for every 24 s)",
        ),
    ],
)
def test_checkpoint_interval_is_explained(limit: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*USUAL, *limit]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert f"a checkpoint has 96 GB and takes 1.4 min at the 1.2 GB/s of /shared; {message}" in out


def test_help_of_the_simulator_lists_plan() -> None:
    listed = subprocess.run([sys.executable, "-m", "simulator", "--help"], capture_output=True, text=True, check=True)
    assert "plan " in listed.stdout
