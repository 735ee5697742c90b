"""Measure the utilisation of the machine: MFU relative to a stated peak, memory, and readings of NVML."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from trainer.metrics.peaks import find_peak

FORMULA = "MFU = floating point operations per sample x samples per second / (ranks x peak of one rank)"
_GB = 1e9
_PAGE_BYTES = 4096


@dataclass(frozen=True)
class MatmulRates:
    """Matmul rates of one rank, in FLOP/s."""

    peak: float
    """The rate that MFU is relative to."""
    source: str
    """The origin of the peak: a setting, a data sheet, or a measurement."""
    achieved: float | None
    """The rate of a plain matmul, measured on this machine."""

    def mfu(self, flops_per_second: float, ranks: int) -> float:
        return flops_per_second / (ranks * self.peak)


def measure_rates(device: torch.device, precision: str, given_tflops: float) -> MatmulRates | None:
    """Return the peak and the measured matmul rate of this rank.

    Call it once, at the same step on every rank: it takes 0.2 s, and ranks that share a CPU must measure at the same
    time. Return None if there is too little memory to measure and the GPU is not listed: no MFU is better than a wrong
    one.
    """
    achieved = _measure_matmul(device, precision)
    if given_tflops:
        return MatmulRates(given_tflops * 1e12, "given (metrics.peak_tflops)", achieved)
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
        sheet = find_peak(name, precision, bool(torch.backends.cuda.matmul.allow_tf32))
        if sheet:
            return MatmulRates(sheet, f"data sheet of {name}", achieved)
    return MatmulRates(achieved, "measured matmul", achieved) if achieved else None


def read_memory_gb(device: torch.device) -> float:
    """Return the peak allocation of the GPU since the last call or, on a CPU, the current size of the process."""
    if device.type == "cuda":
        peak = torch.cuda.max_memory_allocated(device) / _GB
        torch.cuda.reset_peak_memory_stats(device)
        return peak
    try:
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * _PAGE_BYTES / _GB
    except OSError:  # not Linux
        return 0.0


class Nvml:
    """The driver's readings of this rank's GPU; empty if nvidia-ml-py, the driver or a GPU is missing."""

    def __init__(self, device: torch.device, is_enabled: bool) -> None:
        self._nvml: Any = None
        self._handle: Any = None
        if is_enabled and device.type == "cuda":
            self._open(device)

    def read(self) -> dict[str, float]:
        if self._handle is None:
            return {}
        nvml, handle = self._nvml, self._handle
        try:
            return {
                "gpu_utilisation": nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100,
                "gpu_power_w": nvml.nvmlDeviceGetPowerUsage(handle) / 1000,
                "gpu_clock_mhz": float(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)),
                "gpu_temperature_c": float(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)),
            }
        except nvml.NVMLError:
            return {}

    def _open(self, device: torch.device) -> None:
        try:
            import pynvml  # noqa: PLC0415 - optional
        except ImportError:
            return
        try:
            pynvml.nvmlInit()
            # CUDA_VISIBLE_DEVICES renumbers GPUs for torch but not for NVML, so they are matched by UUID.
            uuid = str(torch.cuda.get_device_properties(device).uuid)
            self._handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid.removeprefix('GPU-')}")
            self._nvml = pynvml
        except pynvml.NVMLError:
            self._handle = None


def _measure_matmul(device: torch.device, precision: str, seconds: float = 0.2) -> float | None:
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision, torch.float32)
    size = 4096 if device.type == "cuda" else 512
    try:
        left = torch.rand(size, size, device=device).to(dtype)
        right = torch.rand(size, size, device=device).to(dtype)
        out = torch.empty_like(left)
        return 2 * size**3 * _count_rounds_per_second(lambda: torch.mm(left, right, out=out), device, seconds)
    except RuntimeError:  # out of memory: the measurement must not end a run that barely fits
        return None


def _count_rounds_per_second(work: Any, device: torch.device, seconds: float) -> float:
    def finish() -> float:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter()

    work()
    started, rounds = finish(), 0
    while True:
        for _ in range(8):
            work()
        rounds += 8
        elapsed = finish() - started
        if elapsed >= seconds:
            return rounds / elapsed
