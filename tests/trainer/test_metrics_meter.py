"""Utilisation, and the meter of a loop."""

from __future__ import annotations

import io
import time
from pathlib import Path

import pytest
import torch

from trainer.config.schema import BatchConfig, Config, DataConfig, Gpt2Config, MetricsConfig, MlpConfig, ResNetConfig
from trainer.metrics.json_lines import read
from trainer.metrics.meter import Meter, throughput_unit
from trainer.metrics.peaks import data_sheet
from trainer.metrics.recorder import Recorder
from trainer.metrics.utilisation import Nvml, memory_gb, rates

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("name", "precision", "tf32", "tflops"),
    [
        ("NVIDIA H200", "bf16", False, 989.4),
        ("NVIDIA H200", "fp32", False, 67),
        ("NVIDIA H200", "fp32", True, 494.7),
        ("NVIDIA H100 80GB HBM3", "bf16", False, 989.4),
        ("NVIDIA H100 PCIe", "fp16", False, 756),
        ("NVIDIA GB200", "bf16", False, 2500),
        ("NVIDIA A100-SXM4-80GB", "bf16", False, 312),
        ("NVIDIA A10G", "bf16", False, 70),
        ("NVIDIA L40S", "bf16", False, 362),
        ("NVIDIA L4", "bf16", False, 121),
        ("Tesla V100-SXM2-16GB", "fp32", True, 15.7),
    ],
)
def test_the_peak_is_that_of_the_chip_and_the_unit_in_use(name: str, precision: str, tf32: bool, tflops: float):
    assert data_sheet(name, precision, tf32) == pytest.approx(tflops * 1e12)


def test_an_unknown_chip_has_no_data_sheet():
    assert data_sheet("Banana 9000", "bf16", False) is None


def test_without_a_data_sheet_the_peak_is_measured_and_says_so():
    found = rates(CPU, "fp32", given_tflops=0)
    assert found is not None
    assert found.source == "measured matmul"
    assert found.peak == found.achieved
    assert found.peak > 1e8


def test_a_given_peak_wins_and_the_achieved_one_stands_beside_it():
    found = rates(CPU, "fp32", given_tflops=2.0)
    assert found is not None
    assert (found.peak, found.source) == (2e12, "given (metrics.peak_tflops)")
    assert found.achieved
    assert found.mfu(flops_per_second=4e12, ranks=4) == pytest.approx(0.5)


def test_memory_of_the_process_and_no_gpu_values_without_a_gpu():
    assert 0.05 < memory_gb(CPU) < 100
    assert Nvml(CPU, wanted=True).read() == {}


def test_what_is_counted_per_second():
    assert throughput_unit(Config(name="a", model=Gpt2Config(seq_len=64))) == ("tokens", 64)
    assert throughput_unit(Config(name="a", model=Gpt2Config(), data=DataConfig(seq_len=32))) == ("tokens", 32)
    assert throughput_unit(Config(name="a", model=ResNetConfig())) == ("images", 1)
    assert throughput_unit(Config(name="a", model=MlpConfig())) == ("samples", 1)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Seven steps of 20 ms each, a line every three."""
    folder = tmp_path_factory.mktemp("run")
    config = Config(
        name="m",
        steps=7,
        model=MlpConfig(),
        batch=BatchConfig(size=8),
        metrics=MetricsConfig(every=3, profile_every=3, peak_tflops=1.0),
    )
    recorder = Recorder(folder, 0, config, stream=io.StringIO())
    meter = Meter(recorder, config, CPU, world_size=2, flops_per_sample=1e9)
    seen = []
    for step in range(1, 8):
        with meter.phase("data"):
            time.sleep(0.005)
        with meter.step(step):
            time.sleep(0.015)
        seen += [r.step for r in meter.done(step, {"loss": torch.tensor(1.0 / step)}, {"lr": step / 10})]
        assert seen == list(range(1, step))
    assert [r.step for r in meter.flush()] == [7]
    assert 0.02 <= meter.own_s <= meter.step_s
    recorder.close()
    return folder


def test_a_line_every_n_steps_and_for_the_last(measured: Path):
    lines = read(measured / "metrics" / "rank-00000.jsonl")
    assert [item["step"] for item in lines] == [3, 6, 7]
    assert [item["lr"] for item in lines] == [0.3, 0.6, 0.7]
    assert lines[2]["loss"] == torch.tensor(1 / 7).item()


def test_figures_of_a_line_belong_together(measured: Path):
    line = read(measured / "metrics" / "rank-00000.jsonl")[1]
    assert line["samples_per_s"] == pytest.approx(8 / line["step_s"])
    assert line["mfu"] == pytest.approx(1e9 * line["samples_per_s"] / (2 * 1e12))
    assert line["data_s"] >= 0.005
    assert line["compute_s"] >= 0.015
    parts = ("data_s", "compute_s", "communication_s", "checkpoint_s", "other_s")
    assert line["step_s"] == pytest.approx(sum(line[part] for part in parts))
    assert line["communication_from"] == "profile of step 6"


def test_communication_that_was_never_measured_is_not_zero(tmp_path: Path):
    config = Config(name="m", steps=1, model=MlpConfig(), metrics=MetricsConfig(peak_tflops=1.0))
    recorder = Recorder(tmp_path, 0, config, stream=io.StringIO())
    meter = Meter(recorder, config, CPU, world_size=1, flops_per_sample=0)
    with meter.step(1):
        pass
    meter.done(1, {"loss": torch.tensor(1.0)}, {})
    meter.flush()
    recorder.close()
    (line,) = read(tmp_path / "metrics" / "rank-00000.jsonl")
    assert "communication_s" not in line
    assert line["communication_from"] == "not measured"
    assert "mfu" not in line


def test_the_formula_and_both_rates_are_told(measured: Path):
    (event,) = [event for event in read(measured / "events.jsonl") if event["event"] == "peak"]
    assert event["peak"] == 1e12
    assert event["achieved"] > 1e8
    assert event["formula"].startswith("MFU = ")
