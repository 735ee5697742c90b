"""Load a Config from YAML and dotted overrides, and write it back."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

from trainer.config.check import check
from trainer.config.convert import build_config, find_similar, format_value
from trainer.config.errors import ConfigError, ConfigProblem
from trainer.config.schema import Config
from trainer.config.yaml_text import YamlError, dump_yaml, parse_yaml

PRESETS = Path(__file__).parent.parent / "configs"


def load(path_or_preset: str, overrides: list[str]) -> Config:
    """Return the configuration of a YAML file or preset, changed by `key.sub=value` overrides.

    A file may extend another one with `base: PRESET` or `base: FILE`; the result does not record the base.
    """
    return change(read_tree(path_or_preset), overrides)


def read_tree(path_or_preset: str) -> dict[str, Any]:
    """Return the settings of a YAML file or preset, merged over those of its bases, as a tree of plain values."""
    is_preset = path_or_preset in list_presets()
    return _load_tree(PRESETS / f"{path_or_preset}.yaml" if is_preset else Path(path_or_preset), path_or_preset)


def change(tree: dict[str, Any], overrides: list[str]) -> Config:
    """Return the configuration of a tree of plain values, changed by overrides; the tree is changed too."""
    problems = [problem for override in overrides if (problem := _apply_override(tree, override))]
    config = build_config(tree, problems)
    problems = check(config)
    if problems:
        raise ConfigError(problems)
    return config


def from_dict(tree: dict[str, Any]) -> Config:
    """Return the Config of a tree of plain values; rules between settings are not checked."""
    return build_config(tree, [])


def to_dict(config: Config) -> dict[str, Any]:
    """Return a Config as a tree of plain values."""
    return cast(dict[str, Any], _to_plain(asdict(config)))


def dump(config: Config) -> str:
    """Return a Config as YAML."""
    return dump_yaml(to_dict(config))


def list_changes(before: dict[str, Any], after: dict[str, Any], prefix: str = "") -> list[str]:
    """Return the settings that differ between two trees, as `key: old -> new`."""
    lines = []
    for key in dict.fromkeys([*before, *after]):
        old, new = before.get(key), after.get(key)
        if isinstance(old, dict) and isinstance(new, dict):
            lines += list_changes(old, new, f"{prefix}{key}.")
        elif old != new:
            lines.append(f"{prefix}{key}: {old} -> {new}")
    return lines


def list_presets() -> list[str]:
    """Return the names of the presets."""
    return sorted(path.stem for path in PRESETS.glob("*.yaml"))


def _load_tree(path: Path, name: str, children: tuple[Path, ...] = ()) -> dict[str, Any]:
    """Return the settings of a file merged over those of its base.

    `name` is what the user or the child file called it; `children` are the files that led here through `base`.
    """
    tree = _read(path, name, children)
    if "base" not in tree:
        return tree
    base = tree.pop("base")
    if not isinstance(base, str) or not base:
        raise ConfigError(
            [ConfigProblem(f"{path}: base", f"{format_value(base)} is not allowed", "name a preset or a YAML file")]
        )
    base_path = PRESETS / f"{base}.yaml" if base in list_presets() else path.parent / base
    chain = (*children, path)
    if any(base_path.resolve() == file.resolve() for file in chain):
        circle = " -> ".join(file.name for file in (*chain, base_path))
        raise ConfigError([ConfigProblem(f"{path}: base", f"is circular: {circle}", "remove base from one of them")])
    # The base's name is not inherited: two different runs would share a folder.
    return _merge(_load_tree(base_path, base, chain), {"name": path.stem, **tree})


def _read(path: Path, name: str, children: tuple[Path, ...]) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError([_describe_unreadable(path, name, children, error)]) from error
    try:
        tree = parse_yaml(text)
    except YamlError as error:
        raise ConfigError([ConfigProblem(str(path), str(error), "fix the YAML")]) from error
    if tree is None:
        fix = "write settings into it, at least `name: ...`; a refused `settings --from ... > FILE` leaves it empty"
        raise ConfigError([ConfigProblem(str(path), "is empty", fix)])
    if not isinstance(tree, dict):
        raise ConfigError(
            [ConfigProblem(str(path), f"is {format_value(tree)}, not a mapping of settings", "start with `name: ...`")]
        )
    return tree


def _describe_unreadable(path: Path, name: str, children: tuple[Path, ...], error: Exception) -> ConfigProblem:
    """Suggest the most similar name: a preset or, for a base, also a file in the folder of the child."""
    reason = getattr(error, "strerror", None) or str(error)
    neighbours = sorted(file.name for file in children[-1].parent.glob("*.y*ml")) if children else []
    near = find_similar(name, [*list_presets(), *neighbours])
    kind = "the preset " if near in list_presets() else ""
    fix = f"did you mean {kind}{near}?" if near else f"give a YAML file or one of {', '.join(list_presets())}"
    where = f"{children[-1]}: base: {path}" if children else name
    missing = isinstance(error, FileNotFoundError)
    return ConfigProblem(where, "neither a preset nor a file" if missing else f"cannot be read ({reason})", fix)


def _merge(base: dict[str, Any], child: dict[str, Any]) -> dict[str, Any]:
    """Merge section by section; a model of another family replaces the base's, because it has other settings."""
    merged = {**base, **child}
    for key, value in child.items():
        inner = base.get(key)
        if isinstance(value, dict) and isinstance(inner, dict):
            replaces = key == "model" and value.get("family", inner.get("family")) != inner.get("family")
            merged[key] = value if replaces else _merge(inner, value)
    return merged


def _apply_override(tree: dict[str, Any], override: str) -> ConfigProblem | None:
    key, equals, text = override.partition("=")
    if not equals or not key:
        return ConfigProblem(override, "is not a setting", "write overrides as key.sub=value")
    if key == "base":
        return ConfigProblem(override, "is allowed only in YAML files", f"start with `python -m trainer {text}`")
    try:
        value = parse_yaml(text)
    except YamlError as error:
        return ConfigProblem(key, f"{text!r} is not a YAML value ({error})", "quote it")
    *sections, last = key.split(".")
    for name in sections:
        inner = tree.setdefault(name, {})
        if not isinstance(inner, dict):
            return ConfigProblem(key, f"{name} is {format_value(inner)}, which is not a section")
        tree = inner
    tree[last] = value if text.strip() else ""
    return None


def _to_plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _to_plain(inner) for key, inner in value.items()}
    if hasattr(value, "item"):
        return value.item()  # a number of numpy, in settings that a script has made
    return list(value) if isinstance(value, tuple) else value
