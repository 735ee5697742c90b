"""Random states: a rank's generators as JSON for a checkpoint, and fresh ones that any world size can make."""

from __future__ import annotations

import random
from base64 import b64decode, b64encode
from hashlib import sha256
from typing import Any, cast

import numpy as np
import torch


def seed(run_seed: int, step: int, dp_rank: int) -> None:
    """Generators for a rank that starts, or resumes on another number of ranks, at this step.

    By the rank in the data-parallel dimensions: ranks that split one layer must drop the same activations.
    """
    number = int.from_bytes(sha256(f"{run_seed}/{step}/{dp_rank}".encode()).digest()[:8], "little") >> 1
    random.seed(number)
    np.random.seed(number % 2**32)
    torch.manual_seed(number)


def state(device: torch.device) -> dict[str, Any]:
    kind, words, *rest = cast(Any, np.random.get_state(legacy=True))
    found = {
        "python": random.getstate(),
        "numpy": [kind, words.tolist(), *rest],
        "torch": _text(torch.get_rng_state()),
    }
    if device.type == "cuda":
        found["cuda"] = _text(torch.cuda.get_rng_state(device))
    return found


def restore(found: dict[str, Any], device: torch.device) -> None:
    version, words, spare = found["python"]
    random.setstate((version, tuple(words), spare))
    kind, keys, *rest = found["numpy"]
    np.random.set_state((kind, np.array(keys, dtype=np.uint32), *rest))
    torch.set_rng_state(_tensor(found["torch"]))
    if device.type == "cuda" and "cuda" in found:
        torch.cuda.set_rng_state(_tensor(found["cuda"]), device)


def _text(tensor: torch.Tensor) -> str:
    return b64encode(tensor.numpy().tobytes()).decode()


def _tensor(text: str) -> torch.Tensor:
    return torch.frombuffer(bytearray(b64decode(text)), dtype=torch.uint8)
