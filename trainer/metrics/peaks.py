"""Dense matmul rates from the makers' data sheets, by device name."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Peak:
    """TFLOP/s without sparsity. `half` is bf16 and fp16; 0 where the chip has no such unit."""

    half: float
    tf32: float
    fp32: float


# The first name found in the device's own wins, so variants stand before the plain chip.
PEAKS = {
    "GB300": Peak(2500, 1250, 80),
    "GB200": Peak(2500, 1250, 80),
    "B300": Peak(2250, 1125, 75),
    "B200": Peak(2250, 1125, 75),
    "H200 NVL": Peak(836, 418, 60),
    "H200": Peak(989.4, 494.7, 67),
    "H100 NVL": Peak(836, 418, 60),
    "H100 PCIe": Peak(756, 378, 51),
    "H100": Peak(989.4, 494.7, 67),
    "H800": Peak(989.4, 494.7, 67),
    "H20": Peak(148, 74, 44),
    "A100": Peak(312, 156, 19.5),
    "A800": Peak(312, 156, 19.5),
    "A30": Peak(165, 82, 10.3),
    "A10G": Peak(70, 35, 31.2),
    "A10": Peak(125, 62.5, 31.2),
    "L40S": Peak(362, 183, 91.6),
    "L40": Peak(181, 90.5, 90.5),
    "L4": Peak(121, 60, 30.3),
    "RTX 6000 Ada": Peak(364, 182, 91.1),
    "RTX A6000": Peak(155, 77.4, 38.7),
    "RTX 4090": Peak(165, 82.6, 82.6),
    "V100": Peak(125, 0, 15.7),
    "T4": Peak(65, 0, 8.1),
    "MI300X": Peak(1307, 654, 163),
}


def data_sheet(device_name: str, precision: str, tf32: bool) -> float | None:
    """FLOP/s of the unit that a run of this precision uses; None for a chip that is not listed."""
    for name, peak in PEAKS.items():
        if name in device_name:
            rate = peak.half if precision in ("bf16", "fp16") else peak.tf32 if tf32 and peak.tf32 else peak.fp32
            return rate * 1e12
    return None
