"""How large a checkpoint of the trainer is."""

from __future__ import annotations

from simulator.model import Model
from simulator.parameters import parameters

STATE_BYTES = {"adamw": 12, "sgd": 8}
"""Of each parameter, by optimizer: the weight and its moments in fp32."""


def checkpoint_gb(model: Model, optimizer: str = "adamw") -> float:
    return 1e-9 * STATE_BYTES[optimizer] * parameters(model).total
