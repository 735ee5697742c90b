"""What other trainers do in their own way, as far as it decides memory (data/trainers.yaml)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import yaml

DATA = Path(__file__).with_name("data") / "trainers.yaml"


@dataclass(frozen=True, kw_only=True)
class Habits:
    weight_bytes: int = 0
    """Of the weights that the update works on; 0 where a run chooses."""
    deferred: bool = False
    """Gradients stay whole on each rank until the last micro-batch, though ZeRO splits them."""
    logit_bytes: float = 12.0
    """Of one logit at the peak of the loss in plain modules: fp32 scores, their gradient and that of the loss."""
    kept_products: float = 1.0
    """Share of a layer's products that selective recomputation keeps."""
    whole_vocabulary: bool = False
    """Each tensor rank holds the whole embedding, and all logits at the loss."""
    inputs_on_host: bool = False
    """Where whole layers are computed again under ZeRO-3, the host keeps their inputs."""
    prints: Literal["peak", "reserved", "device"] = "peak"
    """Memory that is reported: what tensors held, what the allocator took, or what nvidia-smi shows."""


USUAL = Habits()


def habits(trainer: str) -> Habits:
    return _table().get(trainer, USUAL)


def trainer_of(words: str) -> str:
    """The trainer that a row's words name; empty where none is known."""
    for name, keys in _words().items():
        if any(key in words.lower() for key in keys):
            return name
    return ""


@cache
def _table() -> dict[str, Habits]:
    return {name: Habits(**{key: v for key, v in entry.items() if key != "words"}) for name, entry in _read().items()}


@cache
def _words() -> dict[str, list[str]]:
    return {name: entry["words"] for name, entry in _read().items()}


def _read() -> dict[str, dict[str, Any]]:
    read: dict[str, dict[str, Any]] = yaml.safe_load(DATA.read_text())
    return read
