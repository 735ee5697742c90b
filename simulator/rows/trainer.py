"""Apply the behavior of a row's trainer, and what the row itself says about memory."""

from __future__ import annotations

from dataclasses import replace

from simulator.hardware.system import System
from simulator.layout import PIPELINE_TUNED_MIN_GPUS, Layout, Loss, Trainer
from simulator.memory.peak import predict_memory
from simulator.model import Transformer
from simulator.rows.cells import RowCells
from simulator.rows.software import parse_memory_terms
from simulator.trainers import identify_trainer, trainer_behavior

UNKNOWN: Trainer = "unknown"
"""Stands for a trainer with unfused modules whose source was not read."""
SPARING: Trainer = "sparing"
"""The same if memory is short: it uses less of it."""


def apply_trainer(cells: RowCells, layout: Layout, *, identify: bool) -> tuple[Layout, tuple[int, ...]]:
    """Return the layout with its trainer's behavior, and the bytes that a weight may have, most likely first.

    `identify` False treats every trainer as unknown. Two-byte weights are rare with unknown trainers, and are not
    assumed if the run failed.
    """
    name = identify_trainer(f"{cells.text('software')} {cells.text('source_ref')}") if identify else ""
    trainer = name or (SPARING if layout.framework == "torch" else "")
    terms = parse_memory_terms(f"{cells.text('software')}; {cells.text('note')}")
    loss: Loss = terms.loss
    if loss == "plain" and layout.compiled and trainer_behavior(trainer).compiles_loss:
        loss = "compiled"
    width = trainer_behavior(trainer).weight_bytes or terms.weight_bytes
    widths = (width,) if width else (4,) if failed(cells) else (4, 2)
    layout = replace(layout, trainer=trainer, loss=loss, memory_figure=terms.memory_figure)  # type: ignore[arg-type]
    return replace(layout, regathers=_regathers(layout)), widths


def _regathers(layout: Layout) -> bool:
    """Return whether FSDP gathers weights for every micro-batch; large runs are assumed to be tuned."""
    untuned = layout.framework == "torch" and layout.gpus < PIPELINE_TUNED_MIN_GPUS
    return untuned and layout.pp > 1 and not trainer_behavior(layout.trainer).keeps_gathered


def failed(cells: RowCells) -> bool:
    """Return whether the run ran out of memory, so that nothing can be inferred from it fitting."""
    return cells.text("fits") == "0"


def relax_if_it_fits(model: Transformer, layout: Layout, system: System) -> Layout:
    """Return the layout with the usual behavior of an unknown trainer if that fits in memory."""
    if layout.trainer != SPARING:
        return layout
    wasteful = replace(layout, trainer=UNKNOWN)
    return wasteful if predict_memory(model, wasteful, system).fits else layout
