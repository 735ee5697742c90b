"""Import and export weights in the folder format of Hugging Face transformers, without its packages."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from trainer import safetensors_file
from trainer.config.errors import ConfigError, ConfigProblem
from trainer.config.models import DecoderConfig, Gpt2Config, LlamaLikeConfig, ModelConfig, MoeConfig
from trainer.models import hf_config
from trainer.models.hf_names import TensorMapping, map_tensors
from trainer.models.registry import build_model

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
CONFIG_FILE = "config.json"
WEIGHT_FILES = re.compile(r"model(-\d+-of-\d+)?\.safetensors|model\.safetensors\.index\.json")
# Tables and masks in older files, which the model computes itself.
COMPUTED = re.compile(r"(rotary_emb\.inv_freq|\.attn\.(masked_)?bias)$")
NAMES_IN_MESSAGE = 4
OTHER_MODEL_FIX = "use the settings of the model that the weights belong to"


def load(folder: Path | str, config: ModelConfig) -> Mapping[str, torch.Tensor]:
    """Return every parameter under our name for it; files are memory-mapped, so bytes are read when they are used."""
    folder, model = Path(folder), _require_supported(config)
    _check_settings(folder, model)
    readers = _open(folder)
    available = {
        _full_name(name, model): (reader, name) for name, reader in readers.items() if not COMPUTED.search(name)
    }
    mappings = map_tensors(model)
    _check_names(folder, model, set(available), {mapping.theirs for mapping in mappings})
    weights = _Weights(available, mappings)
    _check_shapes(folder, config, weights)
    return weights


def export(
    state: Mapping[str, torch.Tensor],
    config: ModelConfig,
    folder: Path | str,
    shard_bytes: int = 5_000_000_000,
    origin: Mapping[str, Any] = MappingProxyType({}),
) -> None:
    """Write a folder that `from_pretrained` opens, in place of an earlier export, if there is one.

    `origin` has the settings of the model that the run started from (`hf_config.select_origin`).

    New files are complete before the earlier ones are removed. config.json is removed first and written last, so that
    an incomplete export cannot be opened.
    """
    folder, model = Path(folder), _require_supported(config)
    _reject_bias(model)
    mappings = map_tensors(model)
    missing = [name for mapping in mappings for name in mapping.ours if name not in state]
    if missing:
        raise ConfigError(
            [ConfigProblem("export", f"the state lacks {_shorten(missing)}", "export a checkpoint of this model")]
        )
    new = folder / ".export.partial"
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(parents=True)
    try:
        _write_weights(state, mappings, new, shard_bytes)
        dtype = str(state["norm.weight"].dtype).removeprefix("torch.")
        _write_json(new / CONFIG_FILE, {**hf_config.make_config_json(model, origin), "torch_dtype": dtype})
        _replace_export(new, folder)
    finally:
        shutil.rmtree(new, ignore_errors=True)


def _write_weights(
    state: Mapping[str, torch.Tensor], mappings: list[TensorMapping], folder: Path, shard_bytes: int
) -> None:
    groups = _group_by_size(mappings, state, shard_bytes)
    weight_map: dict[str, str] = {}
    for number, group in enumerate(groups, start=1):
        name = SINGLE_FILE if len(groups) == 1 else f"model-{number:05d}-of-{len(groups):05d}.safetensors"
        safetensors_file.write(folder / name, {m.theirs: _join(m, state) for m in group}, {"format": "pt"})
        weight_map |= {mapping.theirs: name for mapping in group}
    if len(groups) > 1:
        total = sum(_count_bytes(mapping, state) for mapping in mappings)
        _write_json(folder / INDEX_FILE, {"metadata": {"total_size": total}, "weight_map": weight_map})


def _replace_export(new: Path, folder: Path) -> None:
    """Move the files of a new export to their place; files of an earlier one would be loaded with them, so they go."""
    (folder / CONFIG_FILE).unlink(missing_ok=True)
    for file in [path for path in folder.iterdir() if WEIGHT_FILES.fullmatch(path.name)]:
        file.unlink()
    for file in sorted(new.iterdir(), key=lambda path: path.name == CONFIG_FILE):
        file.replace(folder / file.name)


def _require_supported(config: ModelConfig) -> LlamaLikeConfig | Gpt2Config:
    if isinstance(config, LlamaLikeConfig | Gpt2Config):
        return config
    fix = f"allowed: {', '.join(hf_config.FORMATS)}"
    raise ConfigError([ConfigProblem("model.family", f"{config.family} has no Hugging Face format", fix)])


def _reject_bias(config: DecoderConfig) -> None:
    """Reject a model whose choice of experts depends on more than transformers' models of its family have."""
    if isinstance(config, MoeConfig) and config.balance == "bias":
        message = f"bias, but the Hugging Face format of {config.family} has no place for it"
        fix = "train with loss or none to export the model"
        raise ConfigError([ConfigProblem("model.balance", message, fix)])


def _check_settings(folder: Path, config: DecoderConfig) -> None:
    theirs = hf_config.read_settings(hf_config.read_config_json(folder), str(folder))
    problems = hf_config.list_differences(theirs, config, str(folder))
    if problems:
        raise ConfigError(problems)


def _open(folder: Path) -> dict[str, safetensors_file.Reader]:
    """Return the file reader of each tensor."""
    try:
        if (folder / INDEX_FILE).exists():
            weight_map = json.loads((folder / INDEX_FILE).read_text(encoding="utf-8"))["weight_map"]
            readers = {file: safetensors_file.Reader(folder / file) for file in sorted(set(weight_map.values()))}
            return {name: reader for reader in readers.values() for name in reader}
        reader = safetensors_file.Reader(folder / SINGLE_FILE)
        return dict.fromkeys(reader, reader)
    except (OSError, ValueError, KeyError, safetensors_file.SafetensorsError) as error:
        fix = f"the folder needs {SINGLE_FILE}, or {INDEX_FILE} with its files, complete"
        raise ConfigError([ConfigProblem("checkpoint.initial", f"{folder} cannot be read ({error})", fix)]) from error


def _full_name(name: str, config: DecoderConfig) -> str:
    """Return the name with its prefix, which some files, such as those of the published GPT-2, leave out."""
    prefix = "model." if isinstance(config, LlamaLikeConfig) else "transformer."
    return name if name.startswith((prefix, "lm_head.")) else prefix + name


def _check_names(folder: Path, config: DecoderConfig, available: set[str], required: set[str]) -> None:
    if config.tie_embeddings:
        available.discard("lm_head.weight")
    problems = []
    if missing := sorted(required - available):
        fix = "set model.tie_embeddings=true" if missing == ["lm_head.weight"] else OTHER_MODEL_FIX
        problems.append(ConfigProblem("checkpoint.initial", f"{folder} lacks {_shorten(missing)}", fix))
    if extra := sorted(available - required):
        problems.append(
            ConfigProblem("checkpoint.initial", f"{folder} has {_shorten(extra)}, which the model does not use")
        )
    if problems:
        raise ConfigError(problems)


def _check_shapes(folder: Path, config: ModelConfig, weights: _Weights) -> None:
    with torch.device("meta"):
        expected = {name: tuple(parameter.shape) for name, parameter in build_model(config).named_parameters()}
    wrong = [name for name, shape in expected.items() if weights.measure_shape(name) != shape]
    if wrong:
        name = wrong[0]
        message = f"{folder} has {name} of shape {weights.measure_shape(name)}, the model expects {expected[name]}"
        raise ConfigError(
            [ConfigProblem("checkpoint.initial", message, f"{len(wrong)} shapes differ: {OTHER_MODEL_FIX}")]
        )


class _Weights(Mapping[str, torch.Tensor]):
    """Our parameters, read from files when they are looked up: those of all experts together need a copy."""

    def __init__(
        self, available: Mapping[str, tuple[safetensors_file.Reader, str]], mappings: list[TensorMapping]
    ) -> None:
        self._available = available
        self._sources: dict[str, list[TensorMapping]] = {}
        for mapping in mappings:
            for name in mapping.ours:
                self._sources.setdefault(name, []).append(mapping)

    def __getitem__(self, name: str) -> torch.Tensor:
        parts = [self._read(mapping, name) for mapping in self._sources[name]]
        return parts[0] if self._sources[name][0].expert is None else torch.stack(parts)

    def __iter__(self) -> Iterator[str]:
        return iter(self._sources)

    def __len__(self) -> int:
        return len(self._sources)

    def measure_shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a parameter without reading it."""
        sources = self._sources[name]
        reader, key = self._available[sources[0].theirs]
        shape = tuple(_select(torch.empty(reader.entries[key].shape, device="meta"), sources[0], name).shape)
        return shape if sources[0].expert is None else (len(sources), *shape)

    def _read(self, mapping: TensorMapping, name: str) -> torch.Tensor:
        reader, key = self._available[mapping.theirs]
        return _select(reader[key], mapping, name)


def _select(tensor: torch.Tensor, mapping: TensorMapping, name: str) -> torch.Tensor:
    """Return the part of a tensor in a file that is our parameter of this name."""
    tensor = tensor.t() if mapping.is_transposed else tensor
    return tensor.chunk(len(mapping.ours))[mapping.ours.index(name)]


def _join(mapping: TensorMapping, state: Mapping[str, torch.Tensor]) -> torch.Tensor:
    if mapping.expert is not None:
        return state[mapping.ours[0]][mapping.expert].detach().cpu()
    parts = [state[name].detach().cpu() for name in mapping.ours]
    whole = parts[0] if len(parts) == 1 else torch.cat(parts)
    return whole.t() if mapping.is_transposed else whole


def _group_by_size(
    mappings: list[TensorMapping], state: Mapping[str, torch.Tensor], shard_bytes: int
) -> list[list[TensorMapping]]:
    groups: list[list[TensorMapping]] = [[]]
    filled = 0
    for mapping in mappings:
        size = _count_bytes(mapping, state)
        if groups[-1] and filled + size > shard_bytes:
            groups.append([])
            filled = 0
        groups[-1].append(mapping)
        filled += size
    return groups


def _count_bytes(mapping: TensorMapping, state: Mapping[str, torch.Tensor]) -> int:
    tensors = [state[name] if mapping.expert is None else state[name][mapping.expert] for name in mapping.ours]
    return sum(tensor.nbytes for tensor in tensors)


def _shorten(names: list[str]) -> str:
    more = f" and {len(names) - NAMES_IN_MESSAGE} more" if len(names) > NAMES_IN_MESSAGE else ""
    return ", ".join(names[:NAMES_IN_MESSAGE]) + more


def _write_json(path: Path, tree: dict[str, Any]) -> None:
    path.write_text(json.dumps(tree, indent=2) + "\n", encoding="utf-8")
