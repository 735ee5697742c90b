"""The forecast of one run: step time, memory, duration and cost."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from simulator.forecast.forecast import Forecast, forecast
from simulator.job import layout_from_config
from simulator.machines.instances import system
from simulator.machines.job_machines import MachineRequest, find_job_machines
from simulator.machines.profile import read
from simulator.machines.profile_catalog import apply_profile
from simulator.memory.peak import GIB
from simulator.models import build_model
from simulator.search import auto_layout
from simulator.step.prediction import predict
from tests.simulator import profile_factory
from trainer.config.errors import ConfigError
from trainer.config.load import load
from trainer.models.shape import shape_of

P5EN = "p5en.48xlarge"
STACK = "aws-p5en-lustre"


def predict_run(text: str, **where: object) -> Forecast:
    preset, *settings = text.split()
    return forecast(load(preset, settings), find_job_machines(MachineRequest(**where)))


@pytest.mark.parametrize(
    ("text", "ranks"),
    [
        ("llama-8b batch.micro=1", 16),
        ("llama-8b batch.micro=1 parallel.strategy=fsdp parallel.zero=2 parallel.tensor=2", 32),
        ("llama-1b batch.micro=2 parallel.strategy=ddp parallel.pipeline=2", 8),
        ("mixtral-8x7b batch.micro=1 parallel.expert=8", 32),
        ("resnet50 batch.micro=64", 8),
        ("mlp batch.micro=32 parallel.strategy=ddp", 8),
        ("gpt2-124m batch.micro=4 parallel.strategy=ddp", 4),
    ],
)
def test_complete_settings_are_predicted_unchanged(text: str, ranks: int) -> None:
    result = predict_run(text, instance=P5EN, ranks=ranks)
    config = result.config
    layout = layout_from_config(config, ranks, min(8, ranks), config.batch.micro)
    prediction = predict(build_model(config.model, config.data.seq_len), layout, system(P5EN, -(-ranks // 8)))
    step = result.prediction
    assert (step.step_s, step.low_s, step.high_s) == (prediction.step_s, prediction.low_s, prediction.high_s)
    assert result.resolved.chosen == {}
    assert sum(result.memory_gib.values()) == pytest.approx(result.taken_gib)
    assert result.taken_gib * GIB == pytest.approx(prediction.memory.on_device)


def test_throughput_and_utilisation_follow_from_the_step() -> None:
    result = predict_run("llama-8b batch.micro=1", instance=P5EN, nodes=2)
    tokens = 512 * 8192
    assert result.unit == "tokens"
    step = result.prediction
    assert result.units_per_s == pytest.approx((tokens / step.step_s, tokens / step.high_s, tokens / step.low_s))
    flops = 512 * shape_of(result.config.model).flops_per_sample()
    assert result.mfu == pytest.approx(flops / step.step_s / (16 * 989.4e12), rel=0.01)
    assert predict_run("resnet50", instance=P5EN).unit == "images"


def test_auto_strategy_uses_the_planner_layout() -> None:
    config = load("llama-8b", ["parallel.strategy=auto"])
    _, best = auto_layout.choose_layout(config, system(P5EN, 4))
    result = predict_run("llama-8b parallel.strategy=auto", stack=STACK, nodes=4)
    assert result.prediction.step_s == pytest.approx(best.prediction.step_s)
    assert result.resolved.chosen["parallel.strategy"] == "fsdp"
    assert result.resolved.chosen["batch.micro"] == best.layout.micro_batch


@pytest.mark.parametrize("text", ["resnet50", "llama-8b", "tiny-mlp", "llama-1b parallel.strategy=fsdp"])
def test_automatic_micro_batch_is_the_largest_that_fits(text: str) -> None:
    result = predict_run(text, instance="p5.48xlarge")
    assert result.fits
    micro = result.resolved.chosen["batch.micro"]
    share = result.config.batch.size // result.resolved.layout.dp
    assert share % micro == 0
    if micro < min(share, 64):
        larger = predict_run(f"{text} batch.micro={2 * micro}", instance="p5.48xlarge")
        assert larger.prediction.memory.total > 0.93 * larger.prediction.memory.capacity


TOO_LARGE = [
    ("llama-8b batch.micro=16 parallel.recompute=none", {"instance": "p5.48xlarge", "nodes": 2}, "batch.micro=1"),
    ("llama-8b parallel.strategy=ddp", {"instance": "p5.48xlarge", "ranks": 1}, "parallel.strategy=fsdp --ranks 2"),
    ("llama-8b batch.micro=64", {"instance": "p4d.24xlarge"}, "parallel.recompute=full batch.micro=1"),
    ("resnet50 batch.micro=1024", {"instance": "g6.xlarge"}, "batch.micro=256"),
    ("llama-70b parallel.tensor=1 parallel.strategy=ddp", {"instance": P5EN, "nodes": 1}, "parallel.offload=true"),
]


@pytest.mark.parametrize(("text", "where", "fix"), TOO_LARGE)
def test_suggested_fix_fits(text: str, where: dict[str, object], fix: str) -> None:
    result = predict_run(text, **where)
    assert not result.fits
    problem = result.problem
    assert problem is not None
    assert problem.where == "memory"
    assert re.search(r"[\d.]+ GiB on a GPU; allowed: \d+ GiB; largest: \w+ [\d.]+ GiB", problem.message)
    assert problem.fix.startswith("fits with ")
    assert problem.fix.endswith(fix)
    more = dict(zip(("--nodes", "--ranks"), ("nodes", "ranks"), strict=True))
    settings, _, count = problem.fix.removeprefix("fits with ").partition(" --")
    other = {more[f"--{count.split()[0]}"]: int(count.split()[1])} if count else {}
    assert predict_run(f"{text} {settings}", **{**where, **other}).fits


def test_error_suggests_enough_nodes_if_no_layout_fits() -> None:
    with pytest.raises(ConfigError, match=r"fits into 1 x p5en.*; it fits on 2 nodes \(--nodes 2\)"):
        predict_run("llama-70b parallel.strategy=auto parallel.tensor=1", stack=STACK, nodes=1)


def test_a_run_with_lora_is_not_predicted() -> None:
    """All weights would be counted as trained, and the run would seem not to fit."""
    with pytest.raises(ConfigError, match=r"lora\.rank: 8 is not predicted; allowed: 0; set it to 0 to predict"):
        predict_run("llama-8b lora.rank=8 checkpoint.initial=weights", instance=P5EN)


def test_whole_run_adds_failures_and_cost_to_the_steps() -> None:
    result = predict_run("llama-8b batch.micro=1", stack=STACK)
    run, training = result.run, 38_300 * result.prediction.step_s
    assert result.machines.nodes == 2, "the default is the stack's node count"
    assert training < run.outlook.wall_s < 1.05 * training
    assert run.outlook.low_s < run.outlook.wall_s < run.outlook.high_s
    assert run.cost is not None
    assert run.cost.low < run.cost.usd < run.cost.high
    assert "whole cluster, on-demand" in run.cost.of
    alone = predict_run("llama-8b batch.micro=1", instance=P5EN, nodes=2).run.cost
    assert alone is not None
    assert alone.usd < run.cost.usd < 1.2 * alone.usd
    assert run.kwh is not None
    watts = 1000 * run.kwh / (run.outlook.wall_s / 3600) / 16
    assert 500 < watts < 1600


def test_run_without_checkpoints_takes_longer() -> None:
    never, often = (predict_run(f"llama-8b checkpoint.every={n}", instance=P5EN, nodes=64).run for n in (0, 400))
    assert never.outlook.wall_s > 1.05 * often.outlook.wall_s
    assert never.gain > 0.05 > often.gain


def test_profile_rates_are_used_for_measured_machines(tmp_path: Path) -> None:
    profile = read(profile_factory.write(tmp_path / "p.json", profile_factory.profile((1, 2, 4))))
    result = predict_run("tiny-llama batch.micro=2 parallel.strategy=ddp", profile=profile, ranks=4)
    there = profile.of(1, 4)
    layout = layout_from_config(result.config, 4, 4, 2)
    prediction = predict(build_model(result.config.model), layout, there.system, there.rates)
    assert result.prediction.step_s == pytest.approx(prediction.step_s)
    assert (result.run.cost, result.run.kwh) == (None, None)
    assert result.fits
    assert result.room_gib == pytest.approx(4), "four ranks share the host's 16 GiB"
    assert predict_run("tiny-llama", profile=profile).machines.ranks == 4, (
        "the default is the largest measured number of ranks"
    )
    assert predict_run("tiny-llama", stack="local", ranks=2, profile=profile).machines.ranks == 2


def test_gpu_profile_applies_to_machines_of_a_stack(tmp_path: Path) -> None:
    profile = read(profile_factory.write(tmp_path / "p.json", profile_factory.gpu_profile()))
    result = predict_run("llama-1b batch.micro=4", stack=STACK, nodes=1, profile=profile)
    there = apply_profile(profile, system(P5EN, 1))
    prediction = predict(
        build_model(result.config.model), layout_from_config(result.config, 8, 8, 4), there.system, there.rates
    )
    assert result.prediction.step_s == pytest.approx(prediction.step_s)
    assert result.run.cost is not None
    assert result.peak_tflops == pytest.approx(system(P5EN, 1).gpu.peak_tflops["bf16"]), "MFU refers to the data sheet"


def cpu_profile(folder: Path) -> object:
    return read(profile_factory.write(folder / "cpu.json", profile_factory.profile((1, 2))))


UNAVAILABLE = [
    ({"stack": "p5e"}, r"stack: 'p5e' is not a stack; .*did you mean aws-p5en-lustre\?"),
    ({"stack": STACK, "group": "none"}, "group: 'none' is not a group; allowed: h200"),
    (
        {"stack": "local"},
        r"stack: 'local' has target local, whose machines are not in the catalog; allowed: with --profile",
    ),
    ({"instance": "p5e"}, r"instance: 'p5e' is not in the catalog; nearest: p5e\.48xlarge, p5en\.48xlarge"),
    ({"instance": P5EN, "ranks": 12}, r"--ranks: 12; allowed: up to 8, or a multiple of the 8 .*; use 8 or 16"),
    ({"instance": P5EN, "ranks": 8 * 4096}, r"--ranks: 32768; allowed: up to 8192"),
    ({"profile": cpu_profile, "ranks": 3}, r"--ranks: 3, not measured by .*; allowed: 1 x 1, 1 x 2 \(nodes x ranks\)"),
    ({"profile": cpu_profile, "stack": "local"}, r"--nodes: 2, not measured by .*; allowed: 1 x 1, 1 x 2"),
    (
        {"profile": cpu_profile, "stack": STACK},
        r"profile\.machine\.device: 'cpu' in .*; allowed: h200, the GPU of a p5en",
    ),
]


@pytest.mark.parametrize(("where", "message"), UNAVAILABLE)
def test_unavailable_machines_are_rejected(tmp_path: Path, where: dict[str, object], message: str) -> None:
    request = {name: value(tmp_path) if callable(value) else value for name, value in where.items()}
    with pytest.raises(ConfigError, match=message):
        predict_run("tiny-llama batch.size=64", **request)


def test_gpu_profile_is_rejected_for_a_local_cluster(tmp_path: Path) -> None:
    profile = read(profile_factory.write(tmp_path / "p.json", profile_factory.gpu_profile()))
    with pytest.raises(ConfigError, match=r"'NVIDIA H200' in .*; allowed: 'cpu', the device of stack local's nodes"):
        predict_run("tiny-llama", stack="local", profile=profile)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("llama-8b batch.micro=3", "batch.micro: 3 does not divide batch.size 512"),
        ("llama-8b parallel.pipeline=5", "parallel: pipeline 5 x tensor 1 = 5 does not divide 8 ranks"),
        ("llama-8b batch.size=12", "batch.size: 12 is not divisible by 8 data-parallel ranks"),
        ("llama-8b parallel.strategy=single", "parallel.strategy: single uses pipeline 1 x tensor 1 ranks, but"),
        ("lama-8b", "did you mean the preset llama-8b"),
    ],
)
def test_impossible_layout_is_rejected_with_the_trainer_message(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        predict_run(text, instance=P5EN)
