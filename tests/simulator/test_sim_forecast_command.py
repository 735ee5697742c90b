"""The command `python -m simulator predict CONFIG`: arguments, table and JSON output."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from simulator.__main__ import main
from simulator.forecast.forecast import forecast
from simulator.machines.job_machines import MachineRequest, find_job_machines
from tests.simulator import profile_factory
from trainer.config.load import load

USUAL = ["predict", "llama-8b", "batch.micro=1", "--stack", "aws-p5en-lustre"]


def test_table_shows_every_figure(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(USUAL) == 0
    out = capsys.readouterr().out
    result = forecast(load("llama-8b", ["batch.micro=1"]), find_job_machines(MachineRequest(stack="aws-p5en-lustre")))
    step = result.prediction
    assert out.startswith("llama-8b on 2 x p5en.48xlarge, 16 ranks (stack aws-p5en-lustre)\n")
    assert f"step          {step.step_s:.2f} s ({step.low_s:.2f} s to {step.high_s:.2f} s in 80 % of runs)" in out
    assert f"throughput    {result.units_per_s[0]:,.0f} tokens/s (" in out
    assert f"MFU           {result.mfu:.1%} of the data sheet's 989 TFLOP/s" in out
    assert f"memory        {result.taken_gib:.1f} GiB of 141.0 GiB on the fullest GPU\n" in out
    assert "limited by    matrix products " in out
    for part in ("activations", "optimizer", "weights", "gradients", "outside of tensors"):
        assert part in out
    assert "whole run     38,300 steps in " in out
    assert "the whole cluster, on-demand" in out
    assert " kWh\n" in out


def test_figures_of_a_tiny_model_are_not_rounded_to_0(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", "tiny-llama"]) == 0
    out = capsys.readouterr().out
    assert "a checkpoint of 2.27 MB every 20 steps" in out
    assert "electricity   under 1 kWh" in out


def test_json_has_the_same_figures(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*USUAL, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    result = forecast(load("llama-8b", ["batch.micro=1"]), find_job_machines(MachineRequest(stack="aws-p5en-lustre")))
    assert printed["step_s"]["expected"] == result.prediction.step_s
    assert printed["memory"] | {"parts_gib": {}} == {
        "fits": True,
        "gib": result.taken_gib,
        "room_gib": 141.0,
        "parts_gib": {},
        "problem": None,
    }
    assert sum(printed["parts_s"].values()) == pytest.approx(printed["step_s"]["expected"])
    assert printed["machines"] == {
        "name": "p5en.48xlarge",
        "nodes": 2,
        "ranks": 16,
        "stack": "aws-p5en-lustre",
        "profile": None,
    }
    assert printed["config"]["batch"]["micro"] == 1
    assert printed["run"]["usd"]["low"] < printed["run"]["usd"]["expected"] < printed["run"]["usd"]["high"]


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_layout_that_does_not_fit_is_shown_and_rejected(form: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["predict", "llama-8b", "batch.micro=16", "parallel.recompute=none", "--nodes", "2", *form]
    assert main(arguments) == 2
    output = capsys.readouterr()
    assert "simulator: memory: " in output.err
    assert output.err.endswith("; fits with batch.micro=1\n")
    if form:
        memory = json.loads(output.out)["memory"]
        assert not memory["fits"]
        assert memory["problem"].endswith("fits with batch.micro=1")
    else:
        assert "DOES NOT FIT" in output.out
        assert "whole run" not in output.out


def test_config_file_is_predicted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("base: llama-1b\nsteps: 1000\n")
    assert main(["predict", str(file), "batch.micro=2", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert (printed["name"], printed["run"]["steps"], printed["layout"]["micro_batch"]) == ("mine", 1000, 2)
    assert printed["machines"]["name"] == "p5.48xlarge", "the default machines are those of trace and emulate"


def test_profile_replaces_the_catalog(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    profile = profile_factory.write(tmp_path / "profile.json", profile_factory.profile((1, 4)))
    assert main(["predict", "tiny-llama", "--profile", str(profile)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("tiny-llama on 4 ranks of one node: cpu as measured on 1 x 1, 1 x 4 ranks (profile.json)")
    assert "of the best measured product, 0.05 TFLOP/s" in out
    assert "cost          unknown for machines that are not in the catalog, as is electricity" in out


@pytest.mark.parametrize("columns", [70, 80, 100, 140])
@pytest.mark.parametrize("more", [[], ["batch.micro=64"], ["--stack", "p5e"]])
def test_output_fits_the_terminal(
    columns: int, more: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    main(["predict", "llama-8b", *more])
    output = capsys.readouterr()
    assert max(map(len, (output.out + output.err).splitlines())) <= columns


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "CONFIG, --runs or --collectives is required: a single run, or a table"),
        (["llama-8b", "--runs", "in.csv"], "--runs takes no CONFIG: predict a table or a single run"),
        (["--runs", "in.csv", "--out", "x.csv", "--nodes", "4"], "--runs takes no --nodes, which is for a single run"),
        (["--runs", "in.csv"], "--runs needs --out OUT.csv"),
        (["llama-8b", "--out", "x.csv"], "--out is for tables; --json prints a single run for programs"),
        (["llama-8b", "--group", "h200"], "--group is a node group of a stack: add --stack"),
        (["llama-8b", "--nodes", "2", "--ranks", "2"], "not allowed with argument"),
        (["llama-8b", "-s", "local", "--instance", "p5.48xlarge"], "not allowed with argument"),
    ],
)
def test_conflicting_arguments_are_rejected(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["predict", *arguments])
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["llama-8b", "--ranks", "0"], "--ranks: '0'; allowed: a whole number from 1 on; write for example 8"),
        (["llama-8b", "--ranks", "many"], "--ranks: 'many'; allowed: a whole number from 1 on"),
        (["llama-8b", "--nodes", "1..4"], "nodes: '1..4' is not a single number; allowed: 1 to 1024"),
        (["llama-8b", "batch.size"], "batch.size: is not a setting; write overrides as key.sub=value"),
        (
            ["llama-8b", "batch.size=999999999999999999"],
            "batch.size: 999999999999999999 is not divisible by 8 data",
        ),
        (["llama-8b", "--profile", "none.json"], "profile.file: none.json cannot be read (No such file"),
        (["deepseek-v3"], "deepseek-v3: neither a preset nor a file; give a YAML file or one of "),
    ],
)
def test_invalid_values_are_rejected(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", *arguments]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert f"simulator: {message}" in output.err


def test_predict_imports_neither_torch_nor_matplotlib() -> None:
    arguments = ["predict", "llama-8b", "--json"]
    code = f"import sys; from simulator.__main__ import main; main({arguments!r}); "
    code += "print({'torch', 'matplotlib'} & set(sys.modules))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.endswith("set()\n")
