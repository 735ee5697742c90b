"""`python -m simulator plan`, as typed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from simulator.commands.plan import main
from simulator.search import stacks
from trainer.config import load

USUAL = ["--model", "llama-8b", "--tokens", "1e12", "--stack", "aws-p5en-lustre", "--nodes", "4,64"]


def test_the_table_has_a_chosen_row_with_what_realises_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*USUAL, "--deadline", "90d"]) == 0
    out = capsys.readouterr().out
    assert "row 2 is the cheapest within 90.0 d: 4 x p5en.48xlarge on-demand" in out
    assert 'trainer: {"batch": {"size": 512' in out
    assert "stack: groups.h200.count: 4, budget.usd_per_hour: " in out
    assert "matrix products" in out


def test_json_says_the_same(capsys: pytest.CaptureFixture[str]) -> None:
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


def test_a_step_of_the_chosen_row_is_traced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "step.json"
    assert main([*USUAL, "--json", "--trace", str(out)]) == 0
    said = capsys.readouterr()
    answer = json.loads(said.out)
    chosen = answer["front"][answer["chosen"] - 1]
    ends = [event["ts"] + event["dur"] for event in json.loads(out.read_text())["traceEvents"] if event["ph"] == "X"]
    assert max(ends) / 1e6 == pytest.approx(chosen["step_s"][1], rel=0.02)
    assert "events of a step of" in said.err


def test_a_larger_filesystem_is_planned_with_and_edited_in(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*USUAL, "--shared-gb", "19200", "--write", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "at the 4.7 GB/s of /shared" in out
    assert "storage.shared.size_gb: 19200" in out
    for file in tmp_path.glob("*/Pulumi.aws-p5en-lustre.yaml"):
        assert stacks.spec_of(file).storage["shared"].size_gb == 19200


def test_any_shows_what_the_trainer_does_not_have(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--model", "mixtral-8x7b", *USUAL[2:], "--any"]) == 0
    out = capsys.readouterr().out
    assert "! no trainer config: the trainer has no such model" in out
    assert "no trainer config: the trainer has no such model\nstack: " in out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--model", "lama-8b"], "model: 'lama-8b' is not known; allowed: "),
        (["--model", "lama-8b"], "did you mean llama-8b"),
        (["--model", "resnet50"], "model: resnet has no tokens to plan by"),
        (["--tokens", "-5"], "tokens: -5 is outside of 1 to 1e+15"),
        (["--tokens", "many"], "tokens: 'many' is no number"),
        (["--tokens", "1e30"], "tokens: 1e30 is outside"),
        (["--tokens", "nan"], "tokens: nan is outside"),
        (["--stack", "aws-p5en-luster"], "did you mean aws-p5en-lustre"),
        (["--stack", "local"], "stack: target local has neither instance types nor prices"),
        (["--instance", "p5.48xlrge"], "instance: 'p5.48xlrge' is not in the catalog; nearest: p5.48xlarge"),
        (["--nodes", "0"], "nodes: 0 is outside of 1 to 1024"),
        (["--nodes", "9..3"], "nodes: 9..3 is outside"),
        (["--nodes", "two"], "nodes: 'two' is no number of nodes; write 16, 4,8,12 or 1..128"),
        (["--nodes", "5000"], "nodes: 5000 is outside"),
        (["--batch", "0"], "batch: '0' is no number of samples"),
        (["--batch", "7", "--nodes", "3"], "batch: 7 to 7 samples cannot be shared"),
        (["--deadline", "soon"], "deadline: 'soon' is no time"),
        (["--deadline", "0d"], "deadline: '0d' is no time"),
        (["--budget", "-1"], "budget: -1 is not above 0"),
        (["--group", "h100"], "group: 'h100' is no group; allowed: h200"),
        (["--deadline", "1h"], "deadline: 1.0 h is met by nothing within --nodes; the fastest takes "),
        (["--shared-gb", "5000"], "shared-gb: 5000 is not sold; allowed: 1200, or a multiple of 2400"),
        (["--shared-gb", "4800", "--stack", "aws-g6-pair"], "shared-gb: 4800; the stack has no fsx-lustre at /shared"),
        (["--trace", "step.txt"], "--trace: 'step.txt'; allowed: a name that ends with .json or .png"),
        (["--budget", "100"], "budget: 100 USD is enough for nothing; the cheapest costs "),
    ],
)
def test_bad_input_names_what_is_allowed(words: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*USUAL, *words]) == 2
    err = capsys.readouterr().err
    assert err.startswith("simulator: ")
    assert says in err
    assert "Traceback" not in err


def test_it_is_a_command_of_the_simulator() -> None:
    listed = subprocess.run([sys.executable, "-m", "simulator", "--help"], capture_output=True, text=True, check=True)
    assert "plan " in listed.stdout
