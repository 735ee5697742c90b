"""Weights to start from and to give away: Hugging Face folders and checkpoints of other runs."""

from __future__ import annotations

from pathlib import Path

import torch

from trainer.api import Trainer
from trainer.checkpoint.checkpoints import Checkpoints
from trainer.checkpoint.folder import CHECKPOINTS_FOLDER, MANIFEST
from trainer.config.errors import ConfigError, ConfigProblem
from trainer.config.load import from_dict
from trainer.models import hf
from trainer.models.init import copy_local_part
from trainer.models.registry import build_model

_LOOKED_FOR = f"looked for {MANIFEST}, step-* and {CHECKPOINTS_FOLDER}/step-*"


def load(source: str, trainer: Trainer) -> None:
    """Weights only: step, optimizer and data start anew."""
    folder = Path(source)
    # The shards of a single checkpoint are safetensors too, with names of our own.
    if any(folder.glob("*.safetensors")) and not (folder / MANIFEST).exists():
        _from_hugging_face(folder, trainer)
        return
    checkpoints = trainer.checkpoints_in(folder)
    found = checkpoints.newest()
    if found is None:
        message = _nothing(folder, f"neither weights nor a checkpoint in it ({_LOOKED_FOR} and *.safetensors)")
        fix = "name a run's folder, its checkpoints or one of them, or a Hugging Face folder; or leave it empty"
        raise ConfigError([ConfigProblem("checkpoint.initial", message, fix)])
    checkpoints.load(found, trainer.model_tensors(), partial=True)


def export(source: Path, out: Path) -> None:
    """The newest good checkpoint of a run, or the one named, as a Hugging Face folder."""
    checkpoints = Checkpoints(source)
    found = checkpoints.newest()
    if found is None:
        message = _nothing(source, f"no checkpoint in it ({_LOOKED_FOR})")
        raise ConfigError([ConfigProblem("FROM", message, "name a run's folder, its checkpoints or one of them")])
    model = from_dict(checkpoints.read_state(found)["config"]).model
    with torch.device("meta"):
        shapes = {name: tensor.shape for name, tensor in build_model(model).named_parameters()}
    state = {name: torch.empty(shape) for name, shape in shapes.items()}
    checkpoints.load(found, {f"model.{name}": tensor for name, tensor in state.items()}, partial=True)
    hf.export(state, model, out)
    print(f"{found.path} is now a Hugging Face folder: {out}")


def _nothing(folder: Path, why: str) -> str:
    return f"{folder} has {why}" if folder.is_dir() else f"there is no folder {folder}"


def _from_hugging_face(folder: Path, trainer: Trainer) -> None:
    whole = hf.load(folder, trainer.config.model)
    for name, parameter in trainer.engine.named_parameters():
        copy_local_part(whole[name].to(parameter.dtype), parameter)
