"""Weights from and to folders of Hugging Face's transformers, without its packages."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from trainer import safetensors_file
from trainer.config.errors import ConfigError, ConfigProblem
from trainer.config.schema import Gpt2Config, LlamaConfig, ModelConfig
from trainer.models import hf_names
from trainer.models.hf_names import Piece, pieces
from trainer.models.registry import build_model

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
# Tables and masks that old files carry along and that are computed.
COMPUTED = re.compile(r"(rotary_emb\.inv_freq|\.attn\.(masked_)?bias)$")
SHOWN = 4


def load(folder: Path | str, config: ModelConfig) -> dict[str, torch.Tensor]:
    """Every parameter by our name, mapped from the files: bytes are read when they are used."""
    folder, model = Path(folder), _known(config)
    _same_settings(folder, model)
    files = _open(folder)
    found = {_full_name(name, model): (reader, name) for name, reader in files.items() if not COMPUTED.search(name)}
    wanted = pieces(model)
    _same_names(folder, model, set(found), {piece.theirs for piece in wanted})
    state: dict[str, torch.Tensor] = {}
    for piece in wanted:
        reader, name = found[piece.theirs]
        state |= _split(reader[name], piece)
    _same_shapes(folder, model, state)
    return state


def export(
    state: Mapping[str, torch.Tensor], config: ModelConfig, folder: Path | str, shard_bytes: int = 5_000_000_000
) -> None:
    """A folder that `from_pretrained` opens; config.json comes last, so that half an export is not opened."""
    folder, model = Path(folder), _known(config)
    wanted = pieces(model)
    missing = [name for piece in wanted for name in piece.ours if name not in state]
    if missing:
        raise ConfigError([ConfigProblem("export", f"the state lacks {_some(missing)}", "is it of another model?")])
    folder.mkdir(parents=True, exist_ok=True)
    groups = _groups(wanted, state, shard_bytes)
    weight_map: dict[str, str] = {}
    for number, group in enumerate(groups, start=1):
        name = SINGLE if len(groups) == 1 else f"model-{number:05d}-of-{len(groups):05d}.safetensors"
        safetensors_file.write(folder / name, {p.theirs: _joined(p, state) for p in group}, {"format": "pt"})
        weight_map |= {piece.theirs: name for piece in group}
    if len(groups) > 1:
        total = sum(_size(piece, state) for piece in wanted)
        _write_json(folder / INDEX, {"metadata": {"total_size": total}, "weight_map": weight_map})
    dtype = str(state["norm.weight"].dtype).removeprefix("torch.")
    _write_json(folder / "config.json", {**hf_names.settings(model), "torch_dtype": dtype})


def _known(config: ModelConfig) -> LlamaConfig | Gpt2Config:
    if isinstance(config, LlamaConfig | Gpt2Config):
        return config
    raise ConfigError(
        [ConfigProblem("model.family", f"{config.family} has no Hugging Face form", "allowed: llama, gpt2")]
    )


def _same_settings(folder: Path, config: LlamaConfig | Gpt2Config) -> None:
    try:
        theirs = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        reason = f"config.json of {folder} cannot be read ({error})"
        raise ConfigError(
            [ConfigProblem("checkpoint.initial", reason, "give a folder of transformers' own")]
        ) from error
    if theirs.get("model_type") != config.family:
        message = f"{config.family}, but {folder} holds {theirs.get('model_type')}"
        raise ConfigError([ConfigProblem("model.family", message, "use the model that the weights are of")])
    problems = _different(theirs, config, folder) + _unsupported(theirs, config, folder)
    if problems:
        raise ConfigError(problems)


def _different(theirs: dict[str, Any], config: LlamaConfig | Gpt2Config, folder: Path) -> list[ConfigProblem]:
    is_llama = isinstance(config, LlamaConfig)
    names = hf_names.LLAMA_SETTINGS if is_llama else hf_names.GPT2_SETTINGS
    unsaid = hf_names.LLAMA_UNSAID if is_llama else hf_names.GPT2_UNSAID
    theirs = {**unsaid, **theirs, **(theirs.get("rope_parameters") or {})}
    problems = []
    for name, ours in names.items():
        value = theirs.get(name)
        if value is not None and value != getattr(config, ours):
            message = f"{getattr(config, ours)}, but {folder} has {name} {value}"
            problems.append(ConfigProblem(f"model.{ours}", message, f"set model.{ours}={json.dumps(value)}"))
    return problems


def _unsupported(theirs: dict[str, Any], config: LlamaConfig | Gpt2Config, folder: Path) -> list[ConfigProblem]:
    """What their model computes and ours does not: right weights would give wrong answers."""
    is_llama = isinstance(config, LlamaConfig)
    fixed = dict(hf_names.LLAMA_FIXED if is_llama else hf_names.GPT2_FIXED)
    if is_llama:
        rope = theirs.get("rope_parameters") or theirs.get("rope_scaling") or {}
        theirs = {**theirs, "rope_type": rope.get("rope_type", rope.get("type", "default"))}
        fixed |= {"rope_type": "default", "head_dim": config.dim // config.heads}
    # Files of before 2023 say null for what is the default, and n_inner as the number that null stands for.
    odd = {name: theirs[name] for name, value in fixed.items() if theirs.get(name) not in (None, value)}
    if odd.get("n_inner") == 4 * config.dim:
        del odd["n_inner"]
    return [
        ConfigProblem("checkpoint.initial", f"{folder} has {name} {value}", f"only {fixed[name]} is computed here")
        for name, value in odd.items()
    ]


def _open(folder: Path) -> dict[str, safetensors_file.Reader]:
    """The file of each tensor."""
    try:
        if (folder / INDEX).exists():
            weight_map = json.loads((folder / INDEX).read_text(encoding="utf-8"))["weight_map"]
            readers = {file: safetensors_file.Reader(folder / file) for file in sorted(set(weight_map.values()))}
            return {name: reader for reader in readers.values() for name in reader}
        reader = safetensors_file.Reader(folder / SINGLE)
        return dict.fromkeys(reader, reader)
    except (OSError, ValueError, KeyError, safetensors_file.SafetensorsError) as error:
        fix = f"the folder needs {SINGLE}, or {INDEX} with its files, whole"
        raise ConfigError([ConfigProblem("checkpoint.initial", f"{folder} cannot be read ({error})", fix)]) from error


def _full_name(name: str, config: LlamaConfig | Gpt2Config) -> str:
    """Files of the bare model, such as the published GPT-2, leave the first part of the names out."""
    prefix = "model." if isinstance(config, LlamaConfig) else "transformer."
    return name if name.startswith((prefix, "lm_head.")) else prefix + name


def _same_names(folder: Path, config: LlamaConfig | Gpt2Config, found: set[str], wanted: set[str]) -> None:
    if config.tie_embeddings:
        found.discard("lm_head.weight")
    problems = []
    if missing := sorted(wanted - found):
        fix = "set model.tie_embeddings=true" if missing == ["lm_head.weight"] else "is it of another model?"
        problems.append(ConfigProblem("checkpoint.initial", f"{folder} lacks {_some(missing)}", fix))
    if extra := sorted(found - wanted):
        problems.append(
            ConfigProblem("checkpoint.initial", f"{folder} has {_some(extra)}, which the model does not use")
        )
    if problems:
        raise ConfigError(problems)


def _same_shapes(folder: Path, config: LlamaConfig | Gpt2Config, state: dict[str, torch.Tensor]) -> None:
    with torch.device("meta"):
        wanted = {name: tuple(parameter.shape) for name, parameter in build_model(config).named_parameters()}
    wrong = [name for name, shape in wanted.items() if tuple(state[name].shape) != shape]
    if wrong:
        name = wrong[0]
        message = f"{folder} has {name} of {tuple(state[name].shape)}, the model of {wanted[name]}"
        raise ConfigError(
            [ConfigProblem("checkpoint.initial", message, f"{len(wrong)} differ; is it of another model?")]
        )


def _split(tensor: torch.Tensor, piece: Piece) -> dict[str, torch.Tensor]:
    upright = tensor.t() if piece.turned else tensor
    return dict(zip(piece.ours, upright.chunk(len(piece.ours)), strict=True))


def _joined(piece: Piece, state: Mapping[str, torch.Tensor]) -> torch.Tensor:
    parts = [state[name].detach().cpu() for name in piece.ours]
    whole = parts[0] if len(parts) == 1 else torch.cat(parts)
    return whole.t() if piece.turned else whole


def _groups(wanted: list[Piece], state: Mapping[str, torch.Tensor], shard_bytes: int) -> list[list[Piece]]:
    groups: list[list[Piece]] = [[]]
    filled = 0
    for piece in wanted:
        size = _size(piece, state)
        if groups[-1] and filled + size > shard_bytes:
            groups.append([])
            filled = 0
        groups[-1].append(piece)
        filled += size
    return groups


def _size(piece: Piece, state: Mapping[str, torch.Tensor]) -> int:
    return sum(state[name].numel() * state[name].element_size() for name in piece.ours)


def _some(names: list[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


def _write_json(path: Path, tree: dict[str, Any]) -> None:
    path.write_text(json.dumps(tree, indent=2) + "\n", encoding="utf-8")
