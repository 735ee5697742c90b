"""The random generators of a rank: seeds that any world size can reproduce, and states as JSON for checkpoints."""

from __future__ import annotations

import random
from base64 import b64decode, b64encode
from hashlib import sha256
from typing import Any, cast

import numpy as np
import torch


def seed(run_seed: int, step: int, dp_rank: int) -> None:
    """Seed the generators of a rank that starts at this step, or resumes on another number of ranks.

    Ranks with the same samples get the same seed. For dropout, each step seeds torch's generator again, by rank: ranks
    that split a layer hold other tokens.
    """
    number = int.from_bytes(sha256(f"{run_seed}/{step}/{dp_rank}".encode()).digest()[:8], "little") >> 1
    random.seed(number)
    np.random.seed(number % 2**32)
    torch.manual_seed(number)


def state(device: torch.device) -> dict[str, Any]:
    """Return the states of all generators as a JSON object."""
    kind, keys, *position = cast(Any, np.random.get_state(legacy=True))
    states = {
        "python": random.getstate(),
        "numpy": [kind, keys.tolist(), *position],
        "torch": _encode(torch.get_rng_state()),
    }
    if device.type == "cuda":
        states["cuda"] = _encode(torch.cuda.get_rng_state(device))
    return states


def restore(states: dict[str, Any], device: torch.device) -> None:
    """Set all generators to the states that `state` returned."""
    version, numbers, gauss = states["python"]
    random.setstate((version, tuple(numbers), gauss))
    kind, keys, *position = states["numpy"]
    np.random.set_state((kind, np.array(keys, dtype=np.uint32), *position))
    torch.set_rng_state(_decode(states["torch"]))
    if device.type == "cuda" and "cuda" in states:
        torch.cuda.set_rng_state(_decode(states["cuda"]), device)


def _encode(tensor: torch.Tensor) -> str:
    return b64encode(tensor.numpy().tobytes()).decode()


def _decode(text: str) -> torch.Tensor:
    return torch.frombuffer(bytearray(b64decode(text)), dtype=torch.uint8)
