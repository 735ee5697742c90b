"""The matmul rate of this machine, measured when this module is imported: once before ranks are forked.

Otherwise each rank of each run takes 0.2 s of processor time for it.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from trainer.metrics import utilisation

measured: Any = utilisation
measured._measure_matmul = cache(measured._measure_matmul)
measured._measure_matmul(torch.device("cpu"), "fp32")
