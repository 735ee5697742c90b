"""How much of the machine a run uses: MFU against a stated peak, memory, and what NVML sees."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from trainer.metrics.peaks import data_sheet

FORMULA = "MFU = floating point operations per sample x samples per second / (ranks x peak of one rank)"
_GB = 1e9
_PAGE = 4096


@dataclass(frozen=True)
class Rates:
    """FLOP/s of one rank. `achieved` is what a plain matmul reaches here and now; `peak` is what MFU is relative to."""

    peak: float
    source: str
    achieved: float | None

    def mfu(self, flops_per_second: float, ranks: int) -> float:
        return flops_per_second / (ranks * self.peak)


def rates(device: torch.device, precision: str, given_tflops: float) -> Rates | None:
    """Call at the first log point, on every rank at the same step: the matmul takes its 0.2 s once, after the start.

    All ranks together, because ranks that share a CPU also share its rate. None when memory does not allow the trial
    and no data sheet knows the chip: then there is no MFU rather than a wrong one.
    """
    achieved = _matmul_rate(device, precision)
    if given_tflops:
        return Rates(given_tflops * 1e12, "given (metrics.peak_tflops)", achieved)
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
        sheet = data_sheet(name, precision, bool(torch.backends.cuda.matmul.allow_tf32))
        if sheet:
            return Rates(sheet, f"data sheet of {name}", achieved)
    return Rates(achieved, "measured matmul", achieved) if achieved else None


def memory_gb(device: torch.device) -> float:
    """Largest allocation on the GPU since the last call; on the CPU what the process holds."""
    if device.type == "cuda":
        peak = torch.cuda.max_memory_allocated(device) / _GB
        torch.cuda.reset_peak_memory_stats(device)
        return peak
    try:
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * _PAGE / _GB
    except OSError:  # not Linux
        return 0.0


class Nvml:
    """What the driver says of this rank's GPU. `read` is empty where nvidia-ml-py, the driver or a GPU is missing."""

    def __init__(self, device: torch.device, wanted: bool) -> None:
        self._nvml: Any = None
        self._handle: Any = None
        if wanted and device.type == "cuda":
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
            import pynvml  # noqa: PLC0415
        except ImportError:
            return
        try:
            pynvml.nvmlInit()
            # CUDA_VISIBLE_DEVICES renumbers GPUs for torch and not for NVML: only the UUID is the same.
            uuid = str(torch.cuda.get_device_properties(device).uuid)
            self._handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid.removeprefix('GPU-')}")
            self._nvml = pynvml
        except pynvml.NVMLError:
            self._handle = None


def _matmul_rate(device: torch.device, precision: str, seconds: float = 0.2) -> float | None:
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision, torch.float32)
    size = 4096 if device.type == "cuda" else 512
    try:
        left = torch.rand(size, size, device=device).to(dtype)
        right = torch.rand(size, size, device=device).to(dtype)
        out = torch.empty_like(left)
        return 2 * size**3 * _rounds_per_second(lambda: torch.mm(left, right, out=out), device, seconds)
    except RuntimeError:  # out of memory: a run that just fits is worth more than this figure
        return None


def _rounds_per_second(work: Any, device: torch.device, seconds: float) -> float:
    def finish() -> float:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter()

    work()
    began, rounds = finish(), 0
    while True:
        for _ in range(8):
            work()
        rounds += 8
        took = finish() - began
        if took >= seconds:
            return rounds / took
