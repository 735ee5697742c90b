"""The matmul rate of this machine, measured when this module is imported: once before ranks are forked.

Otherwise each rank of each run takes 0.2 s of processor time for it, and seconds in fp16, which few processors have.
"""

from __future__ import annotations

from typing import Any

import torch

from trainer.metrics import utilisation

module: Any = utilisation
measure_matmul = module._measure_matmul
_RATE = measure_matmul(torch.device("cpu"), "fp32")


def return_rate(_device: torch.device, _precision: str) -> float | None:
    """Return the rate that was measured in fp32, for runs in any precision."""
    rate: float | None = _RATE
    return rate


module._measure_matmul = return_rate
