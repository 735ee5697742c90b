"""Fill tensors from a checkpoint of any world size and strategy: torch.distributed.checkpoint plans, this reads."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer import safetensors_file
from trainer.checkpoint.folder import INDEX
from trainer.checkpoint.group import Group
from trainer.config.errors import ConfigError, ConfigProblem

if TYPE_CHECKING:
    import torch

SHOWN = 3


def load(path: Path, tensors: Mapping[str, torch.Tensor], group: Group, partial: bool) -> None:
    """In place. Every rank asks for what it holds; `partial` allows the checkpoint to have more than all ask for."""
    # Importing them takes a second: only for those who load.
    from torch.distributed.checkpoint import state_dict_loader  # noqa: PLC0415
    from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner  # noqa: PLC0415

    from trainer.checkpoint.reader import ShardReader  # noqa: PLC0415

    index: dict[str, Any] = json.loads((path / INDEX).read_text())["tensors"]
    problems = _differences(index, tensors, group, partial)
    if problems:
        message = f"{path} is a checkpoint of another model: {'; '.join(problems)}"
        raise ConfigError([ConfigProblem("model", message, "take the settings stored in it, or another run.folder")])
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled")
        state_dict_loader.load(
            dict(tensors),
            storage_reader=ShardReader(path, index),
            planner=DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False),
            process_group=group.handle,
            no_dist=group.handle is None,
        )


def _differences(
    index: Mapping[str, Any], tensors: Mapping[str, torch.Tensor], group: Group, partial: bool
) -> list[str]:
    """What does not match on any rank, said the same on all of them."""
    missing = [name for name in tensors if name not in index]
    present = [(name, tensor) for name, tensor in tensors.items() if name in index]
    other = [text for name, tensor in present if (text := _difference(name, tensor, index[name]))]
    names = sorted(index)
    asked = group.highest([int(name in tensors) for name in names])
    unexpected = [] if partial else [name for name, wanted in zip(names, asked, strict=True) if not wanted]
    every = group.all((missing, other))
    return [
        *_list("it lacks", [name for rank_missing, _ in every for name in rank_missing]),
        *_list("it has what the model lacks:", unexpected),
        *_list("shapes differ:", [text for _, rank_other in every for text in rank_other]),
    ]


def _difference(name: str, tensor: torch.Tensor, entry: Mapping[str, Any]) -> str:
    code = safetensors_file.code_of(tensor)
    if list(tensor.shape) == entry["shape"] and code == entry["dtype"]:
        return ""
    return f"{name} is {entry['dtype']} {entry['shape']} there and {code} {list(tensor.shape)} here"


def _list(what: str, names: list[str]) -> list[str]:
    names = list(dict.fromkeys(names))
    if not names:
        return []
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return [f"{what} {', '.join(names[:SHOWN])}{more}"]
