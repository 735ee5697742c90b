"""Peak matmul rates of GPUs, dense, from the manufacturers' data sheets."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PeakRates:
    """Peak rates in TFLOP/s without sparsity; 0 if the GPU does not support the precision."""

    half: float
    """bf16 and fp16."""
    tf32: float
    fp32: float


# The first name that is part of the device's name wins, so variants come before the plain model.
PEAKS = {
    "GB300": PeakRates(2500, 1250, 80),
    "GB200": PeakRates(2500, 1250, 80),
    "B300": PeakRates(2250, 1125, 75),
    "B200": PeakRates(2250, 1125, 75),
    "H200 NVL": PeakRates(836, 418, 60),
    "H200": PeakRates(989.4, 494.7, 67),
    "H100 NVL": PeakRates(836, 418, 60),
    "H100 PCIe": PeakRates(756, 378, 51),
    "H100": PeakRates(989.4, 494.7, 67),
    "H800": PeakRates(989.4, 494.7, 67),
    "H20": PeakRates(148, 74, 44),
    "A100": PeakRates(312, 156, 19.5),
    "A800": PeakRates(312, 156, 19.5),
    "A30": PeakRates(165, 82, 10.3),
    "A10G": PeakRates(70, 35, 31.2),
    "A10": PeakRates(125, 62.5, 31.2),
    "L40S": PeakRates(362, 183, 91.6),
    "L40": PeakRates(181, 90.5, 90.5),
    "L4": PeakRates(121, 60, 30.3),
    "RTX 6000 Ada": PeakRates(364, 182, 91.1),
    "RTX A6000": PeakRates(155, 77.4, 38.7),
    "RTX 4090": PeakRates(165, 82.6, 82.6),
    "V100": PeakRates(125, 0, 15.7),
    "T4": PeakRates(65, 0, 8.1),
    "MI300X": PeakRates(1307, 654, 163),
}


def find_peak(device_name: str, precision: str, tf32: bool) -> float | None:
    """Return the peak FLOP/s of a run with this precision, or None for a GPU that is not listed."""
    for name, peak in PEAKS.items():
        if name in device_name:
            rate = peak.half if precision in ("bf16", "fp16") else peak.tf32 if tf32 and peak.tf32 else peak.fp32
            return rate * 1e12
    return None
