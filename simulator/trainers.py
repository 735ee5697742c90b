"""How known trainers differ in what decides memory and traffic (data/trainers.yaml)."""

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
    """Memory and communication behavior of a trainer; the defaults are those of this project's trainer."""

    weight_bytes: int = 0
    """Bytes of a weight in the optimizer; 0 if each run chooses."""
    deferred: bool = False
    """Gradients stay unsharded until the last micro-batch even if ZeRO shards them."""
    logit_bytes: float = 12.0
    """Bytes per logit at the peak of an unfused loss: fp32 logits, their gradient and that of the loss."""
    saved_products: float = 1.0
    """Share of a layer's matrix products whose outputs selective recomputation saves."""
    whole_vocabulary: bool = False
    """Each tensor-parallel rank holds the whole embedding, and all logits at the loss."""
    inputs_on_host: bool = False
    """With full recomputation under ZeRO-3, the inputs of layers are kept in host memory."""
    plain: bool = False
    """Modules are unfused, but schedule and state are Megatron's."""
    keeps_gathered: bool = False
    """Pipeline stages keep the weights that FSDP gathered for the whole step."""
    broadcasts_parts: bool = False
    """After the update of ZeRO-1 and 2, ranks broadcast their shards of the weights one after the other."""
    routes_evenly: bool = False
    """A synthetic router sends each token to neighboring experts, evenly over all of them."""
    gathers_again: bool = False
    """Inputs that tensor-parallel ranks gather for a product are gathered again in backward."""
    keeps_outputs: bool = False
    """A pipeline stage keeps its outputs until their backward."""
    narrow_copies: bool = False
    """bf16 gradients are kept next to their fp32 sums."""
    compiles_loss: bool = False
    """The loss is compiled if the layers are."""
    copies_buckets: bool = False
    """DDP's buckets are a second copy of the gradients (torch's default)."""
    memory_figure: Literal["peak", "reserved", "device"] = "peak"
    """Memory figure that it reports: `MemoryFigure` in simulator/layout.py."""


DEFAULT = TrainerBehavior()
DATE = re.compile(r"(?<!\d)(20[12]\d)-?(0[1-9]|1[0-2])(?!\d{3})")
LATEST_MONTH = 999999


def trainer_behavior(trainer: str) -> TrainerBehavior:
    """Return the behavior of a trainer by its name; the default for unknown names."""
    return _table().get(trainer, DEFAULT)


def identify_trainer(text: str) -> str:
    """Return the trainer that the text of a row names, or an empty string.

    A year and month in the text select the release of that time.
    """
    dated = DATE.search(text)
    month = int(dated[1] + dated[2]) if dated else LATEST_MONTH
    for name, entry in _read().items():
        if month < entry.get("until", LATEST_MONTH + 1) and any(key in text.lower() for key in entry["keywords"]):
            return name
    return ""


@cache
def _table() -> dict[str, TrainerBehavior]:
    identification = ("keywords", "until")
    return {
        name: TrainerBehavior(**{key: v for key, v in entry.items() if key not in identification})
        for name, entry in _read().items()
    }


@cache
def _read() -> dict[str, dict[str, Any]]:
    entries: dict[str, dict[str, Any]] = yaml.safe_load(DATA.read_text())
    return entries
