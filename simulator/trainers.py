"""What other trainers do in their own way, as far as it decides memory (data/trainers.yaml)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import yaml

DATA = Path(__file__).with_name("data") / "trainers.yaml"


@dataclass(frozen=True, kw_only=True)
class TrainerBehavior:
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
    plain: bool = False
    """Modules are torch's own, though the schedule and the state are those of Megatron."""
    keeps_gathered: bool = False
    """Stages of a pipeline keep the weights that FSDP gathered for the whole step."""
    broadcasts_parts: bool = False
    """After the update of ZeRO-1 and 2 ranks send their parts of the weights to all others, one after the other."""
    routes_evenly: bool = False
    """A made router sends each token to neighbouring experts, and as many to each."""
    gathers_again: bool = False
    """What tensor ranks gather for a product is not kept for backward."""
    keeps_outputs: bool = False
    """A pipeline's stage holds what it sent on until backward comes back to it."""
    narrow_copies: bool = False
    """bf16 gradients stay beside the fp32 sums of them."""
    compiles_loss: bool = False
    """The loss is compiled where the layers are."""
    copies_buckets: bool = False
    """DDP's buckets are a second copy of the gradients, as torch has it unless told otherwise."""
    tells: Literal["peak", "reserved", "device"] = "peak"
    """Memory that is reported where a run does not say which: `Told` of simulator/layout.py."""


USUAL = TrainerBehavior()
DATE = re.compile(r"(?<!\d)(20[12]\d)-?(0[1-9]|1[0-2])(?!\d{3})")
NOW = 999999


def trainer_behavior(trainer: str) -> TrainerBehavior:
    return _table().get(trainer, USUAL)


def identify_trainer(words: str) -> str:
    """The trainer that a row's words name, as it was then (a year and month in them); empty where none is known."""
    dated = DATE.search(words)
    month = int(dated[1] + dated[2]) if dated else NOW
    for name, entry in _read().items():
        if month < entry.get("until", NOW + 1) and any(key in words.lower() for key in entry["words"]):
            return name
    return ""


@cache
def _table() -> dict[str, TrainerBehavior]:
    told = ("words", "until")
    return {
        name: TrainerBehavior(**{key: v for key, v in entry.items() if key not in told})
        for name, entry in _read().items()
    }


@cache
def _read() -> dict[str, dict[str, Any]]:
    read: dict[str, dict[str, Any]] = yaml.safe_load(DATA.read_text())
    return read
