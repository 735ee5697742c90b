"""Profiles of calibrated machines: the fit, the predictions, and errors for invalid profiles."""

from __future__ import annotations

import copy
import sys
from pathlib import Path
from typing import Any

import pytest

from simulator.__main__ import main
from simulator.layout import Layout
from simulator.machines.nonnegative import solve, solve_quiet
from simulator.machines.profile import read
from simulator.step.prediction import predict
from tests.simulator import profile_factory
from trainer.config.errors import ConfigError

MODEL = profile_factory.transformer(4, 128, 4, 384, 1024, 64)


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_fit_recovers_the_rates_of_a_machine(tmp_path: Path, ranks: int) -> None:
    machine = read(profile_factory.write(tmp_path / "p.json", profile_factory.profile())).of(1, ranks)
    layout = Layout(dp=ranks, micro_batch=4, global_batch=4 * ranks, dtype="fp32")
    true = predict(MODEL, layout, profile_factory.system(ranks), profile_factory.rates())
    prediction = predict(MODEL, layout, machine.system, machine.rates)
    assert prediction.step_s == pytest.approx(true.step_s, rel=0.02)
    for part in ("compute", "attention", "vocabulary", "memory bound", "data", "optimizer"):
        assert prediction.parts[part] == pytest.approx(true.parts[part], rel=0.05, abs=0.01 * true.step_s), part


def test_fit_tolerates_one_outlier(tmp_path: Path) -> None:
    content = profile_factory.profile((1,))
    world = content["worlds"][0]
    world["layers"].append({**copy.deepcopy(world["layers"][1]), "layer_s": 3 * world["layers"][1]["layer_s"]})
    machine = read(profile_factory.write(tmp_path / "p.json", content)).of(1, 1)
    layout = Layout(micro_batch=4, global_batch=4, dtype="fp32")
    true = predict(MODEL, layout, profile_factory.system(1), profile_factory.rates())
    assert predict(MODEL, layout, machine.system, machine.rates).step_s == pytest.approx(true.step_s, rel=0.05)


def test_deep_run_measures_the_step_overhead_per_layer(tmp_path: Path) -> None:
    content = profile_factory.profile((2,))
    for name, size in (("short_run", profile_factory.SHORT), ("deep_run", profile_factory.DEEP)):
        content["worlds"][0][name] = profile_factory.short_run(2, size, step_layer_us=300.0)
    machine = read(profile_factory.write(tmp_path / "p.json", content)).of(1, 2)
    assert machine.rates.step_layer_us == pytest.approx(300, rel=0.1)
    assert machine.rates.step_ms == pytest.approx(profile_factory.TRUE["step_ms"], rel=0.05)
    once, four = (
        predict(MODEL, Layout(dp=2, global_batch=2 * count, dtype="fp32"), machine.system, machine.rates).parts["step"]
        for count in (1, 4)
    )
    assert four == once, "gradients are clipped and applied once per step, not once per micro-batch"


def test_deep_run_lowers_the_host_time_of_layers(tmp_path: Path) -> None:
    content = profile_factory.profile((1,))
    for name, size in (("short_run", profile_factory.SHORT), ("deep_run", profile_factory.DEEP)):
        content["worlds"][0][name] = profile_factory.short_run(1, size, host_torch_us=20.0)
    machine = read(profile_factory.write(tmp_path / "p.json", content)).of(1, 1)
    assert (machine.rates.host_torch_us, machine.rates.step_layer_us) == (pytest.approx(20, rel=0.05), 0.0)


@pytest.mark.parametrize(("ranks", "cores"), [(2, 8), (4, 2)])
def test_measured_runs_are_reproduced(tmp_path: Path, ranks: int, cores: int) -> None:
    """This also holds if ranks wait for the slowest rank or share cores."""
    content = profile_factory.profile((ranks,), cores=cores)
    world = content["worlds"][0]
    world["spread"] = 0.05
    for name, times in (("short_run", 1.5), ("deep_run", 2.5)):
        world[name]["step_s"] *= times
    machine = read(profile_factory.write(tmp_path / "p.json", content)).of(1, ranks)
    for name, size in (("short_run", profile_factory.SHORT), ("deep_run", profile_factory.DEEP)):
        model = profile_factory.transformer(size["layers"], 32, 2, 64, 64, 16)
        prediction = predict(model, Layout(dp=ranks, global_batch=ranks, dtype="fp32"), machine.system, machine.rates)
        assert prediction.step_s == pytest.approx(world[name]["step_s"], rel=1e-3), name


def test_profile_without_a_deep_run_is_read(tmp_path: Path) -> None:
    machine = read(profile_factory.write(tmp_path / "p.json", profile_factory.profile_without_deep_run((1,)))).of(1, 1)
    assert machine.rates.step_ms == pytest.approx(profile_factory.TRUE["step_ms"], rel=0.05)


def test_ranks_that_share_cores_take_twice_as_long(tmp_path: Path) -> None:
    layout = Layout(dp=4, micro_batch=8, global_batch=32, dtype="fp32")
    steps = []
    for cores in (4, 2):
        machine = read(
            profile_factory.write(tmp_path / "p.json", profile_factory.profile_without_deep_run((4,), cores=cores))
        ).of(1, 4)
        steps.append(predict(MODEL, layout, machine.system, machine.rates).parts)
    for part in ("compute", "attention", "vocabulary", "memory bound"):
        assert steps[1][part] == pytest.approx(2 * steps[0][part], rel=0.01), part


def test_nodes_of_one_machine_share_its_cores(tmp_path: Path) -> None:
    """Two containers with two ranks each share two cores, although each container alone has enough cores."""
    content = profile_factory.profile_without_deep_run((2,), cores=2)
    alone = content["worlds"][0]
    content["worlds"].append({**copy.deepcopy(alone), "nodes": 2, "per_core": 2.0})
    profile = read(profile_factory.write(tmp_path / "p.json", content))
    rates = []
    for nodes in (1, 2):
        machine = profile.of(nodes, 2)
        layout = Layout(dp=2 * nodes, micro_batch=8, global_batch=16 * nodes, dtype="fp32")
        rates.append(predict(MODEL, layout, machine.system, machine.rates).parts)
    assert rates[1]["compute"] == pytest.approx(2 * rates[0]["compute"], rel=0.01)


def test_unmeasured_number_of_ranks_is_rejected(tmp_path: Path) -> None:
    profile = read(profile_factory.write(tmp_path / "p.json", profile_factory.profile((1, 2))))
    with pytest.raises(ConfigError, match=r"profile.worlds: 1 nodes x 4 ranks were not .* allowed: 1 x 1, 1 x 2"):
        profile.of(1, 4)


INVALID_PROFILES: list[tuple[dict[str, Any] | str, str]] = [
    ("no json", r"profile\.file: .* is not JSON"),
    ("[]", r"profile\.schema: None in .*; allowed: 2"),
    ({"schema": 1}, r"profile\.schema: 1 in .*; allowed: 2"),
    ({"worlds": []}, r"profile\.worlds: none in"),
    ({"worlds": [{"nodes": 1}]}, r"profile\.worlds\.per_node: missing in"),
    ({"worlds": [profile_factory.world(1) | {"copied_gb_s": -1.0}]}, r"profile\.worlds\.products: -1\.0 in .*above 0"),
    (
        {"worlds": [profile_factory.world(1) | {"products": {"fp32": [[1, 2, 3, 0]]}}]},
        r"profile\.worlds\.products: \[1, 2, 3, 0\] in",
    ),
    ("[" * 100_000, r"profile\.file: .* is not JSON"),
    ({"machine": {"device": 3, "memory_gb": 16.0}}, r"profile\.machine\.device: 3 in .*; allowed: a device name"),
    ({"machine": {"device": "cpu", "memory_gb": -3}}, r"profile\.machine\.memory_gb: -3 in .*; allowed: above 0"),
    ({"worlds": [profile_factory.world(1) | {"products": {}}]}, r"profile\.worlds\.products\.fp32: none in"),
    ({"worlds": [profile_factory.world(1) | {"copied_gb_s": "x"}]}, r"profile\.worlds\.products: x in .*above 0"),
    ({"worlds": [profile_factory.world(1) | {"copied_gb_s": float("nan")}]}, r"profile\.worlds\.products: nan in"),
    (
        {"worlds": [profile_factory.world(1) | {"short_run": None}]},
        r"profile\.worlds\.short_run: None in .*a run",
    ),
    (
        {"worlds": [profile_factory.world(1) | {"deep_run": [1]}]},
        r"profile\.worlds\.deep_run: \[1\] in .*a run",
    ),
    ({"worlds": [profile_factory.world(1) | {"deep_run": {}}]}, r"profile\.worlds\.deep_run: \{\} in"),
    ({"worlds": [profile_factory.world(1) | {"deep_run": {"model": 3}}]}, r"profile\.worlds\.deep_run: .* in"),
    (
        {"worlds": [profile_factory.world(1) | {"deep_run": profile_factory.short_run(1, profile_factory.SHORT)}]},
        r"profile\.worlds\.deep_run: .*; allowed: a run of more than 1 layers",
    ),
    (
        {"worlds": [profile_factory.world(1) | {"deep_run": profile_factory.world(1)["deep_run"] | {"step_s": -1}}]},
        r"profile\.worlds\.deep_run: .*times above 0",
    ),
]


@pytest.mark.parametrize(("change", "message"), INVALID_PROFILES)
def test_invalid_profile_is_rejected(tmp_path: Path, change: dict[str, Any] | str, message: str) -> None:
    file = tmp_path / "p.json"
    if isinstance(change, str):
        file.write_text(change)
    else:
        profile_factory.write(file, profile_factory.profile((1,)) | change)
    with pytest.raises(ConfigError, match=message):
        read(file)


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"profile\.file: .*none\.json cannot be read \(No such file.*; allowed: a file"
    ):
        read(tmp_path / "none.json")


def test_fitted_values_are_not_negative() -> None:
    rows = [[1.0, 1.0], [2.0, 1.0], [4.0, 1.0]]
    assert solve(rows, [3.0, 5.0, 9.0]) == pytest.approx([2.0, 1.0])
    assert min(solve(rows, [1.0, 3.0, 7.0])) >= 0


def test_outlier_row_is_ignored() -> None:
    rows = [[float(x), 1.0] for x in (1, 2, 4, 8, 16)]
    targets = [2 * row[0] + 1 for row in rows]
    assert solve_quiet([*rows, [4.0, 1.0]], [*targets, 27.0]) == pytest.approx([2.0, 1.0])


def test_calibrate_without_torch_names_the_environment(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert main(["calibrate"]) == 2
    assert capsys.readouterr().err == (
        "simulator: torch is not installed here; `python -m simulator calibrate --help` shows how to get it\n"
    )


@pytest.mark.parametrize("command", ["calibrate", "emulate"])
def test_help_works_without_torch_and_names_the_environment(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0
    output = capsys.readouterr().out
    assert ".venv-torch/bin/pip install '.[trainer,simulator]'" in output
    assert f".venv-torch/bin/python -m simulator {command}" in output
    assert ("make submit STACK=... JOB=slurm/jobs/calibrate.sbatch" in output) == (command == "calibrate")
