"""Random states: a rank's generators as tensors for a checkpoint, and fresh ones that any world size can make."""

from __future__ import annotations

import random
from hashlib import sha256

import numpy as np
import torch

_BITS = 2**63


def seed(run_seed: int, step: int, dp_rank: int) -> None:
    """Generators for a rank that starts, or resumes on another number of ranks, at this step.

    By the rank in the data-parallel dimensions: ranks that split one layer must drop the same activations.
    """
    digest = sha256(f"{run_seed}/{step}/{dp_rank}".encode()).digest()
    number = int.from_bytes(digest[:8], "little") % _BITS
    random.seed(number)
    np.random.seed(number % 2**32)  # people's own code draws from the global one
    torch.manual_seed(number)


def state(rank: int, device: torch.device) -> dict[str, torch.Tensor]:
    """Named by rank: each rank's own, and another world size finds none of them missing."""
    version, words, spare = random.getstate()
    kind, keys, position, has_spare, numpy_spare = np.random.get_state(legacy=True)
    del version, kind
    found = {
        "torch": torch.get_rng_state(),
        "python": torch.tensor(words, dtype=torch.int64),
        "python_spare": torch.tensor([spare is not None, spare or 0.0], dtype=torch.float64),
        "numpy": torch.from_numpy(np.array([*keys, position, has_spare], dtype=np.int64)),
        "numpy_spare": torch.tensor(numpy_spare, dtype=torch.float64),
    }
    if device.type == "cuda":
        found["cuda"] = torch.cuda.get_rng_state(device)
    return {f"rng.{rank}.{name}": tensor for name, tensor in found.items()}


def restore(rank: int, device: torch.device, tensors: dict[str, torch.Tensor]) -> None:
    """What `state` gave; the tensors may have been overwritten with those of a checkpoint."""
    mine = {
        name: tensors[f"rng.{rank}.{name}"].cpu()
        for name in ("torch", "python", "python_spare", "numpy", "numpy_spare")
    }
    torch.set_rng_state(mine["torch"])
    has_spare, spare = mine["python_spare"].tolist()
    random.setstate((3, tuple(mine["python"].tolist()), spare if has_spare else None))
    *keys, position, numpy_has = mine["numpy"].tolist()
    words = np.array(keys, dtype=np.uint32)
    np.random.set_state(("MT19937", words, position, numpy_has, float(mine["numpy_spare"])))
    if device.type == "cuda":
        torch.cuda.set_rng_state(tensors[f"rng.{rank}.cuda"].cpu(), device)
