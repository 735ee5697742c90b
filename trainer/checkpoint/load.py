"""Fill tensors from a checkpoint of any world size and strategy; torch.distributed.checkpoint plans what to read."""

from __future__ import annotations

import json
import warnings
from collections.abc import Container, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer import safetensors_file
from trainer.checkpoint.folder import INDEX
from trainer.checkpoint.group import RankGroup
from trainer.checkpoint.read_retry import read_with_retries
from trainer.config.errors import ConfigError, ConfigProblem

if TYPE_CHECKING:
    import torch

_MAX_NAMED = 3
# Only fp16 has a loss scale and only fp8 a history, and a run may be resumed in another precision. Without them, it
# starts anew. So do the momentum of outer steps, and tensors that belong to one rank, if there are other ranks now.
_OPTIONAL = ("scaler.", "fp8.", "outer.", "private.")
_CONVERTED = {"F32", "BF16"}
"""Formats of weights and moments that are converted when they are loaded, so that a run can change their settings."""


def load_tensors(
    path: Path,
    tensors: Mapping[str, torch.Tensor],
    group: RankGroup,
    partial: bool,
    ignored: Container[str] = (),
) -> None:
    """Load into these tensors in place; `partial` allows the checkpoint to contain tensors that no rank needs.

    `ignored` names some that it may contain in any case.
    """
    index = read_index(path, group)
    tensors = {name: tensor for name, tensor in tensors.items() if name in index or not name.startswith(_OPTIONAL)}
    differences = _find_differences(index, tensors, group, partial, ignored)
    if differences.names:
        raise ConfigError([_describe_differences(path, differences)])
    group.run_together(lambda: _fill(path, tensors, index))


def read_index(path: Path, group: RankGroup) -> dict[str, Any]:
    """Return type, shape and places of each tensor of a checkpoint by name; every rank must call it."""
    index = group.run_together(lambda: _parse(path / INDEX))
    if "parts" not in index:
        whole: dict[str, Any] = index["tensors"]
        return whole
    # Each rank reads some of the parts: a filesystem should not serve thousands of files to thousands of ranks.
    share = index["parts"][group.rank :: group.world_size]
    own = group.run_together(lambda: [_parse(path / name)["tensors"] for name in share])
    return _merge_parts([part for parts in group.gather(own) for part in parts])


def read_json(file: Path, group: RankGroup) -> Any:
    """Return the content of a file of a checkpoint; every rank must call it, and all fail if one cannot read its file.

    Each rank reads for itself, because some files belong to one rank.
    """
    return group.run_together(lambda: _parse(file))


def _merge_parts(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the index whose parts each have some of the chunks of each tensor."""
    merged: dict[str, Any] = {}
    for part in parts:
        for name, entry in part.items():
            merged.setdefault(name, {**entry, "chunks": []})["chunks"] += entry["chunks"]
    return merged


def _parse(file: Path) -> Any:
    try:
        return json.loads(read_with_retries(file, file.read_bytes))
    except ValueError as error:
        # The parser's error does not name the file.
        raise ValueError(f"{file} is not valid JSON: {error}") from error


def _fill(path: Path, tensors: Mapping[str, torch.Tensor], index: Mapping[str, Any]) -> None:
    """Read what this rank needs. It plans on its own: together, ranks would pickle their plans to send them."""
    # Start-up: importing these takes a second, and only runs that resume need them.
    from torch.distributed.checkpoint import CheckpointException, state_dict_loader  # noqa: PLC0415
    from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner  # noqa: PLC0415

    from trainer.checkpoint.reader import ShardReader  # noqa: PLC0415

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled")
        try:
            state_dict_loader.load(
                dict(tensors),
                storage_reader=ShardReader(path, index),
                planner=DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False),
                no_dist=True,
            )
        except CheckpointException as problem:
            # The error itself, whose type says what failed.
            raise next(iter(problem.failures.values()))[0] from None


@dataclass(frozen=True)
class Differences:
    """What differs between the tensors of a checkpoint and those of a run."""

    names: list[str]
    texts: list[str]


def _describe_differences(path: Path, differences: Differences) -> ConfigProblem:
    details = "; ".join(differences.texts)
    if all(name.startswith("optim.") for name in differences.names):
        message = f"{path} has the state of another optimizer: {details}"
        fix = "use the optimizer settings stored in it, or start another run from its weights with checkpoint.initial"
        return ConfigProblem("optimizer", message, fix)
    message = f"{path} is a checkpoint of another model: {details}"
    return ConfigProblem("model", message, "use the settings stored in it, or another run.folder")


def _find_differences(
    index: Mapping[str, Any],
    tensors: Mapping[str, torch.Tensor],
    group: RankGroup,
    partial: bool,
    ignored: Container[str],
) -> Differences:
    """Return the differences of all ranks; every rank gets the same list."""
    missing = [name for name in tensors if name not in index]
    present = [(name, tensor) for name, tensor in tensors.items() if name in index]
    different = {name: text for name, tensor in present if (text := _compare(name, tensor, index[name]))}
    names = sorted(name for name in index if not name.startswith(_OPTIONAL))
    needed = group.maximum([int(name in tensors or name in ignored) for name in names])
    unexpected = [] if partial else [name for name, is_needed in zip(names, needed, strict=True) if not is_needed]
    all_ranks = group.gather((missing, different))
    missing = [name for missing_here, _ in all_ranks for name in missing_here]
    different = {name: text for _, different_here in all_ranks for name, text in different_here.items()}
    texts = [
        *_list_names("missing in the checkpoint:", missing),
        *_list_names("missing in the model:", unexpected),
        *_list_names("shapes differ:", list(different.values())),
    ]
    return Differences([*missing, *unexpected, *different], texts)


def _compare(name: str, tensor: torch.Tensor, entry: Mapping[str, Any]) -> str:
    code = safetensors_file.dtype_code(tensor)
    is_converted = name.startswith(("model.", "optim.")) and {code, entry["dtype"]} == _CONVERTED
    if list(tensor.shape) == entry["shape"] and (code == entry["dtype"] or is_converted):
        return ""
    return f"{name} is {entry['dtype']} {entry['shape']} there and {code} {list(tensor.shape)} here"


def _list_names(label: str, names: list[str]) -> list[str]:
    names = list(dict.fromkeys(names))
    if not names:
        return []
    more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
    return [f"{label} {', '.join(names[:_MAX_NAMED])}{more}"]
