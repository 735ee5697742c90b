"""Estimate the electricity of a whole run."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import yaml

from simulator.hardware.system import System

DATA = Path(__file__).parents[1] / "data" / "energy.yaml"
JOULES_PER_KWH = 3.6e6


def kwh(system: System, seconds: float, busy: float) -> float:
    """Return the energy that the run takes; `busy` is the share of time in which GPU kernels compute."""
    power = _power()
    gpu = system.gpu.watts * (busy * power["working"] + (1 - busy) * power["waiting"])
    return system.gpus * (gpu + power["other_watts_per_gpu"]) * power["pue"] * seconds / JOULES_PER_KWH


@cache
def _power() -> dict[str, float]:
    power: dict[str, float] = yaml.safe_load(DATA.read_text())
    return power
