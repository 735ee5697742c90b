"""The habits of a row's trainer, as far as it is known, and what the row's own words say beside them."""

from __future__ import annotations

from dataclasses import replace

from simulator.hardware.system import System
from simulator.layout import PIPELINE_TUNED_MIN_GPUS, Layout, Loss, Trainer
from simulator.memory.peak import predict_memory
from simulator.model import Transformer
from simulator.rows.software import parse_memory_terms
from simulator.rows.values import RowCells
from simulator.trainers import identify_trainer, trainer_behavior

UNKNOWN: Trainer = "unknown"
SPARING: Trainer = "sparing"
"""A trainer with plain modules that nobody has looked into, where there is room and where there is none."""


def with_habits(values: RowCells, layout: Layout, *, known: bool) -> tuple[Layout, tuple[int, ...]]:
    """The layout, and bytes that a weight may have; `known` False: as if the trainer were not.

    Narrow weights come last: they are rare, where nobody knows the trainer, and nobody tried them where the run failed.
    """
    name = identify_trainer(f"{values.text('software')} {values.text('source_ref')}") if known else ""
    trainer = name or (SPARING if layout.framework == "torch" else "")
    words = parse_memory_terms(f"{values.text('software')}; {values.text('note')}")
    loss: Loss = words.loss
    if loss == "plain" and layout.compiled and trainer_behavior(trainer).compiles_loss:
        loss = "compiled"
    width = trainer_behavior(trainer).weight_bytes or words.weight_bytes
    widths = (width,) if width else (4,) if failed(values) else (4, 2)
    found = replace(layout, trainer=trainer, loss=loss, told=words.told)  # type: ignore[arg-type]
    return replace(found, regathers=_regathers(found)), widths


def _regathers(layout: Layout) -> bool:
    """Whether FSDP gathers weights for every micro-batch: of large runs one may think somebody has seen to it."""
    plain = layout.framework == "torch" and layout.gpus < PIPELINE_TUNED_MIN_GPUS
    return plain and layout.pp > 1 and not trainer_behavior(layout.trainer).keeps_gathered


def failed(values: RowCells) -> bool:
    """It ran out of memory: nothing may be inferred from that it fits."""
    return values.text("fits") == "0"


def roomy(model: Transformer, layout: Layout, system: System) -> Layout:
    """Where there is room, an unknown trainer is not taken to spare it."""
    if layout.trainer != SPARING:
        return layout
    wasteful = replace(layout, trainer=UNKNOWN)
    return wasteful if predict_memory(model, wasteful, system).fits else layout
