"""`strategy: auto` is resolved before the job is submitted."""

from __future__ import annotations

import json
import re
import shlex

import pytest

from simulator.commands import plan
from simulator.commands.auto import main
from simulator.machines import stacks
from trainer.config.check import check_world
from trainer.config.load import load

STACK = ["-s", "aws-p5en-lustre", "--nodes", "4"]
AUTO = ["llama-8b", "parallel.strategy=auto"]


def run_auto(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> list[str]:
    assert main(arguments) == 0
    return capsys.readouterr().out.split()


def test_printed_config_runs_on_the_nodes(capsys: pytest.CaptureFixture[str]) -> None:
    chosen = run_auto([*AUTO, *STACK], capsys)
    assert chosen[:2] == AUTO
    config = load(chosen[0], chosen[1:])
    assert config.parallel.strategy in ("ddp", "fsdp", "hsdp")
    assert config.batch.micro != "auto"
    assert check_world(config, 32, 8) == []


@pytest.mark.parametrize("setting", ["optimizer.name=muon", "optimizer.moments=int8"])
def test_optimizers_that_need_whole_rows_get_no_tensor_parallelism(
    setting: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without it, eight samples cannot keep 32 GPUs busy."""
    free = ["llama-70b", "parallel.strategy=auto", "parallel.tensor=1", "batch.size=8", *STACK]
    assert load("llama-70b", run_auto(free, capsys)[1:]).parallel.tensor > 1
    assert main([*free, setting]) == 2
    assert "no layout of batch.size 8 fits" in capsys.readouterr().err


def test_fixed_settings_are_unchanged(capsys: pytest.CaptureFixture[str]) -> None:
    fixed = ["parallel.tensor=4", "batch.micro=2", "parallel.recompute=full", "batch.size=96"]
    chosen = run_auto([*AUTO, *fixed, *STACK], capsys)
    config = load(chosen[0], chosen[1:])
    assert (config.parallel.tensor, config.batch.micro, config.parallel.recompute) == (4, 2, "full")
    assert config.batch.size == 96
    assert check_world(config, 32, 8) == []


@pytest.mark.parametrize(
    ("config", "why"),
    [
        (["resnet50", "parallel.strategy=auto"], "resnet is not a transformer"),
        ([*AUTO, "parallel.offload=true"], "parallel.offload is on"),
        ([*AUTO, "parallel.context=2"], "parallel.context is 2"),
        (
            [*AUTO, "lora.rank=8", "checkpoint.initial=weights"],
            "lora.rank is 8, and predictions are for training all weights",
        ),
    ],
)
def test_unsupported_configs_are_left_to_the_trainer(
    config: list[str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*config, *STACK]) == 0
    output = capsys.readouterr()
    assert output.out.split() == config
    assert output.err == f"left to the trainer: {why}\n"


def test_explicit_strategy_is_unchanged(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["llama-8b", *STACK]) == 0
    output = capsys.readouterr()
    assert output.out == "llama-8b\n"
    notice = "nothing to choose: parallel.strategy is hsdp; add parallel.strategy=auto to have it chosen\n"
    assert output.err == notice


def test_slow_setting_is_named_with_a_faster_value(capsys: pytest.CaptureFixture[str]) -> None:
    """The preset recomputes, the planner would not: both commands predict the same time for the faster layout."""
    assert main([*AUTO, *STACK]) == 0
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    better = re.search(r"; parallel\.recompute=none would take (\S+) s$", error.strip())
    assert better
    answer = ["--model", "llama-8b", "--tokens", "1e12", *STACK, "--batch", "512", "--json"]
    assert plan.main(answer) == 0
    planned = json.loads(capsys.readouterr().out)["front"][0]["step_s"][1]
    assert float(better[1]) == pytest.approx(planned, abs=0.01)


@pytest.mark.nightly_cases("fixed3-compile.mode=blocks would take ")
@pytest.mark.parametrize(
    ("fixed", "note"),
    [
        (["parallel.recompute=none"], ""),
        (["parallel.recompute=none", "batch.micro=2"], ""),
        (["parallel.recompute=none", "parallel.tensor=8"], "parallel.tensor=1 would take "),
        (["parallel.recompute=none", "compile.mode=none"], "compile.mode=blocks would take "),
    ],
)
def test_only_slow_settings_are_named(fixed: list[str], note: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*AUTO, *fixed, *STACK]) == 0
    error = capsys.readouterr().err
    assert note in error
    assert error.count("would take") == bool(note)


def test_default_group_is_used_if_none_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    several = ["--stack", "aws-full", "--nodes", "2"]
    spec = stacks.spec_of(stacks.find("aws-full"))
    assert len(spec.groups) > 1
    default = spec.slurm.default_group or next(iter(spec.groups))
    main([*AUTO, *several])
    unnamed = capsys.readouterr()
    main([*AUTO, *several, "--group", default])
    assert capsys.readouterr() == unnamed


def test_arguments_with_spaces_are_quoted(capsys: pytest.CaptureFixture[str]) -> None:
    spaced = "data.path=/shared/my text"
    assert main([*AUTO, spaced, *STACK]) == 0
    assert shlex.split(capsys.readouterr().out)[:3] == [*AUTO, spaced]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([*AUTO, "batch.size=3", *STACK], "parallel: no layout of batch.size 3 fits into 4 x p5en.48xlarge"),
        ([*AUTO, *STACK, "batch.size=3"], "parallel: no layout of batch.size 3 fits into 4 x p5en.48xlarge"),
        (["llama-70b", "parallel.strategy=auto", "parallel.tensor=1", *STACK[:3], "1"], "use more nodes"),
        ([*AUTO, *STACK[:3], "0"], "nodes: 0 is outside of 1 to 1024"),
        (
            [*AUTO, *STACK[:3], "1..4"],
            "nodes: '1..4' is not a single number; allowed: 1 to 1024; write the job's number",
        ),
        ([*AUTO, *STACK[:3], "4,8"], "nodes: '4,8' is not a single number"),
        (["llama-8b", *STACK[:3], "1..4"], "nodes: '1..4' is not a single number"),
        (["lama-8b", *STACK], "did you mean the preset llama-8b?"),
        ([*AUTO, "--stack", "local", "--nodes", "2"], "stack: the simulator knows no machines of target local"),
    ],
)
def test_invalid_settings_are_rejected(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert message in capsys.readouterr().err
