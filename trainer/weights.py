"""Load the initial weights of a run from a Hugging Face folder or another run's checkpoint, and export weights."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from trainer.api import OWN_MODEL, Trainer
from trainer.checkpoint.checkpoints import Checkpoints
from trainer.checkpoint.folder import CHECKPOINTS_FOLDER, MANIFEST, list_published
from trainer.checkpoint.group import RankGroup
from trainer.checkpoint.retention import find_best
from trainer.checkpoint.weight_formats import name_master
from trainer.config.errors import ConfigError, ConfigProblem
from trainer.config.load import from_dict
from trainer.models import hf, hf_config
from trainer.models.lora import is_adapter, merge
from trainer.models.registry import build_network
from trainer.tokenizer_files import copy_tokenizer

ORIGIN = "origin"
"""Entry in the `extra` of a checkpoint: settings of the Hugging Face model that the run started from."""
_LOOKED_FOR = f"looked for {MANIFEST}, step-* and {CHECKPOINTS_FOLDER}/step-*"


def load_initial(source: str, trainer: Trainer) -> dict[str, Any]:
    """Load only the weights from a folder; step, optimizer and data start from the beginning. Every rank must call it.

    If one rank cannot read its files, all ranks fail. Return the settings of the original Hugging Face model that an
    export takes over: the folder may be gone by then.
    """
    folder, world = Path(source), trainer.world
    group = RankGroup(world.rank, world.size, world.group)
    if group.run_on_first(lambda: _is_hugging_face(folder)):
        group.run_together(lambda: trainer.load_weights(hf.load(folder, trainer.config.model)))
        return hf_config.select_origin(hf_config.read_config_json(folder))
    checkpoints = trainer.open_checkpoints(folder)
    checkpoint = checkpoints.newest()
    if checkpoint is None:
        message = _describe_missing(folder, f"neither weights nor a checkpoint ({_LOOKED_FOR} and *.safetensors)")
        fix = "use a run's folder, its checkpoints folder, one checkpoint or a Hugging Face folder; or leave it empty"
        raise ConfigError([ConfigProblem("checkpoint.initial", message, fix)])
    state = checkpoints.read_state(checkpoint)
    _reject_adapters(folder, state["config"])
    model_tensors = trainer.model_tensors().items()
    tensors = {name: tensor for name, tensor in model_tensors if not is_adapter(name.removesuffix(".master"))}
    trainer.load_tensors(checkpoints, checkpoint, tensors, partial=True)
    return {} if OWN_MODEL in state else state["extra"].get(ORIGIN, {})


def export(source: Path, out: Path, *, is_best: bool = False) -> None:
    """Write the newest good checkpoint of a run, its best one, or the given one, as a Hugging Face folder.

    The tokenizer is copied from the folder that the run started from, or from its data. The positions and the special
    tokens of the model that the run started from are in the checkpoint, unless it is from before they were recorded.
    """
    checkpoints = Checkpoints(find_best_checkpoint(source) if is_best else source)
    checkpoint = checkpoints.newest()
    if checkpoint is None:
        message = _describe_missing(source, f"no checkpoint ({_LOOKED_FOR})")
        fix = "use a run's folder, its checkpoints folder or one checkpoint"
        raise ConfigError([ConfigProblem("FROM", message, fix)])
    state = checkpoints.read_state(checkpoint)
    reject_own_model(source, state, "FROM", "call trainer.state_dict() in that script and save the model itself")
    config = from_dict(state["config"])
    with torch.device("meta"):
        shapes = {name: tensor.shape for name, tensor in build_network(config).named_parameters()}
    types = checkpoints.read_types(checkpoint)
    weights = {name: torch.empty(shape, dtype=_choose_export_type(name, types)) for name, shape in shapes.items()}
    checkpoints.load(checkpoint, {f"model.{name}": tensor for name, tensor in weights.items()}, partial=True)
    hf.export(merge(weights, config.lora), config.model, out, origin=state["extra"].get(ORIGIN, {}))
    tokenizer = copy_tokenizer(config, out)
    note = f", with the tokenizer of {tokenizer}" if tokenizer else ""
    print(f"exported {checkpoint.path} to the Hugging Face folder {out}{note}")


def reject_own_model(folder: Path, state: dict[str, Any], where: str, fix: str) -> None:
    """Reject the checkpoint of a model that a script has given to `Trainer`: its settings do not describe it."""
    if OWN_MODEL in state:
        message = f"{folder} was trained from Python with a model of its own, {state[OWN_MODEL]}"
        raise ConfigError([ConfigProblem(where, message, fix)])


def find_best_checkpoint(source: Path) -> Path:
    """Return the best checkpoint of a run by the figure that it was set to keep the best by, or raise ConfigError."""
    folder = source if list_published(source) else source / CHECKPOINTS_FOLDER
    checkpoints = Checkpoints(folder, verify="size")
    newest = checkpoints.newest()
    if newest is None:
        return source  # the caller says what is missing
    figure = from_dict(checkpoints.read_state(newest)["config"]).checkpoint.best
    best = find_best(folder, figure) if figure else None
    if best is None:
        reason = f"a checkpoint with its {figure}" if figure else "a best checkpoint: checkpoint.best is not set"
        fix = "leave --best out for the newest one, or give one checkpoint"
        raise ConfigError([ConfigProblem("--best", f"{source} does not have {reason}", fix)])
    return best


def _reject_adapters(folder: Path, their_config: dict[str, Any]) -> None:
    """Reject a checkpoint of a LoRA run: its weights are those that it started from."""
    rank = their_config.get("lora", {}).get("rank", 0)
    if rank:
        message = f"{folder} is a run with lora.rank {rank}, which stores its changes beside the weights"
        fix = f"merge them first: python -m trainer export {folder} MERGED, then checkpoint.initial=MERGED"
        raise ConfigError([ConfigProblem("checkpoint.initial", message, fix)])


def _describe_missing(folder: Path, lacking: str) -> str:
    return f"{folder} contains {lacking}" if folder.is_dir() else f"there is no folder {folder}"


def _is_hugging_face(folder: Path) -> bool:
    # The shards of one of our checkpoints are safetensors files too, but with our own tensor names.
    return any(folder.glob("*.safetensors")) and not (folder / MANIFEST).exists()


def _choose_export_type(name: str, types: Mapping[str, str]) -> torch.dtype:
    """Return the type in which a weight is exported: that of the checkpoint, or of its fp32 copy there."""
    has_short = types.get(f"model.{name}") == "BF16" and name_master(name) not in types
    return torch.bfloat16 if has_short else torch.float32
