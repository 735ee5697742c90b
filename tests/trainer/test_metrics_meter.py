"""Peak rates and utilisation, and the meter of a training loop."""

from __future__ import annotations

import io
import time
from pathlib import Path

import pytest
import torch

from tests.trainer import matmul_rate
from trainer.config.models import Gpt2Config, MlpConfig, ResNetConfig
from trainer.config.schema import BatchConfig, Config, DataConfig, MetricsConfig
from trainer.metrics import utilisation
from trainer.metrics.json_lines import read_lines
from trainer.metrics.meter import Meter, throughput_unit
from trainer.metrics.peaks import find_peak
from trainer.metrics.recorder import Recorder
from trainer.metrics.utilisation import Nvml, measure_rates, read_memory_gb

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
def test_the_peak_depends_on_gpu_and_precision(name: str, precision: str, tf32: bool, tflops: float):
    assert find_peak(name, precision, tf32) == pytest.approx(tflops * 1e12)


def test_an_unlisted_gpu_has_no_peak():
    assert find_peak("Banana 9000", "bf16", False) is None


@pytest.fixture
def real_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure again, instead of using the rate that the tests share."""
    monkeypatch.setattr(utilisation, "_measure_matmul", matmul_rate.measure_matmul)


@pytest.mark.usefixtures("real_measurement")
def test_without_a_data_sheet_the_peak_is_measured():
    rates = measure_rates(CPU, "fp32", given_tflops=0)
    assert rates is not None
    assert rates.source == "measured matmul"
    assert rates.peak == rates.achieved
    assert rates.peak > 1e8


@pytest.mark.usefixtures("real_measurement")
def test_a_configured_peak_wins_and_the_measured_rate_is_also_recorded():
    rates = measure_rates(CPU, "fp32", given_tflops=2.0)
    assert rates is not None
    assert (rates.peak, rates.source) == (2e12, "given (metrics.peak_tflops)")
    assert rates.achieved
    assert rates.mfu(flops_per_second=4e12, ranks=4) == pytest.approx(0.5)


def test_a_cpu_run_reports_process_memory_and_nothing_from_nvml():
    assert 0.05 < read_memory_gb(CPU) < 100
    assert Nvml(CPU, is_enabled=True).read() == {}


def test_the_unit_of_throughput_depends_on_the_model():
    assert throughput_unit(Config(name="a", model=Gpt2Config(seq_len=64))) == ("tokens", 64)
    assert throughput_unit(Config(name="a", model=Gpt2Config(), data=DataConfig(seq_len=32))) == ("tokens", 32)
    assert throughput_unit(Config(name="a", model=ResNetConfig())) == ("images", 1)
    assert throughput_unit(Config(name="a", model=MlpConfig())) == ("samples", 1)


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Measure seven steps of 20 ms each, with a line every three steps."""
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


def test_there_is_a_line_every_n_steps_and_for_the_last_step(run_folder: Path):
    lines = read_lines(run_folder / "metrics" / "rank-00000.jsonl")
    assert [item["step"] for item in lines] == [3, 6, 7]
    assert [item["lr"] for item in lines] == [0.3, 0.6, 0.7]
    assert lines[2]["loss"] == torch.tensor(1 / 7).item()


def test_the_figures_of_a_line_are_consistent(run_folder: Path):
    line = read_lines(run_folder / "metrics" / "rank-00000.jsonl")[1]
    assert line["samples_per_s"] == pytest.approx(8 / line["step_s"])
    assert line["mfu"] == pytest.approx(1e9 * line["samples_per_s"] / (2 * 1e12))
    assert line["data_s"] >= 0.005
    assert line["compute_s"] >= 0.015
    parts = ("data_s", "compute_s", "communication_s", "checkpoint_s", "other_s")
    assert line["step_s"] == pytest.approx(sum(line[part] for part in parts))
    assert line["communication_from"] == "profile of step 6"


def test_communication_that_was_not_measured_is_left_out(tmp_path: Path):
    config = Config(name="m", steps=1, model=MlpConfig(), metrics=MetricsConfig(peak_tflops=1.0))
    recorder = Recorder(tmp_path, 0, config, stream=io.StringIO())
    meter = Meter(recorder, config, CPU, world_size=1, flops_per_sample=0)
    with meter.step(1):
        pass
    meter.done(1, {"loss": torch.tensor(1.0)}, {})
    meter.flush()
    recorder.close()
    (line,) = read_lines(tmp_path / "metrics" / "rank-00000.jsonl")
    assert "communication_s" not in line
    assert line["communication_from"] == "not measured"
    assert "mfu" not in line


def test_the_formula_and_both_rates_are_recorded(run_folder: Path):
    (event,) = [event for event in read_lines(run_folder / "events.jsonl") if event["event"] == "peak"]
    assert event["peak"] == 1e12
    assert event["achieved"] > 1e8
    assert event["formula"].startswith("MFU = ")
