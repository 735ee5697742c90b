"""Decide from which tensors of a checkpoint weights are loaded, if it was saved with other formats of weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainer import safetensors_file

if TYPE_CHECKING:
    import torch

_MODEL = "model."
_FORMATS = {"F32": "fp32", "BF16": "bf16"}


@dataclass(frozen=True)
class WeightSources:
    """Where the weights of a run come from in a checkpoint."""

    targets: dict[str, torch.Tensor]
    """The tensors to load into, by their name in the checkpoint."""
    ignored: frozenset[str]
    """Tensors of the checkpoint that are not needed, because others have the same weights with more bits."""
    note: str
    """A line for the log if formats differ; else empty."""


def name_master(parameter: str) -> str:
    """Return the name of a parameter's fp32 copy in a checkpoint."""
    return f"optim.{parameter}.master"


def choose_sources(saved: Mapping[str, str], tensors: Mapping[str, torch.Tensor]) -> WeightSources:
    """Choose for each weight the tensor of the checkpoint with the most bits; `saved` has their types by name.

    If only one side has fp32 copies (optimizer.master), weights are loaded into the copies, or from them.
    Parameters that have copies must be set to them afterwards.
    """
    targets, ignored, changes = dict(tensors), set(), set()
    for name in [name for name in tensors if name.startswith(_MODEL) and name in saved]:
        master = name_master(name.removeprefix(_MODEL))
        stored = safetensors_file.dtype_code(tensors[name])
        if master in tensors and master not in saved:
            targets[name] = targets.pop(master)
        elif master in saved and master not in tensors and stored == "F32":
            targets[master] = targets.pop(name)
            ignored.add(name)
        elif master in saved and master not in tensors:
            ignored.add(master)
        there, here = _describe(saved[name], master in saved), _describe(stored, master in tensors)
        if there != here:
            changes.add(f"the checkpoint has {there}, and this run stores {here}")
    note = f"weights were converted: {'; '.join(sorted(changes))}" if changes else ""
    return WeightSources(targets, frozenset(ignored), note)


def _describe(code: str, has_master: bool) -> str:
    return _FORMATS.get(code, code) + (" with fp32 copies" if has_master else "")
