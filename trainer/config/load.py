"""From YAML and dotted overrides to a Config and back; strict, with every problem named at once."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

from trainer.config.check import check
from trainer.config.convert import build, nearest_word, shown
from trainer.config.errors import ConfigError, ConfigProblem
from trainer.config.schema import Config
from trainer.config.yaml_text import YamlError, dump_yaml, parse_yaml

PRESETS = Path(__file__).parent.parent / "configs"


def load(path_or_preset: str, overrides: list[str]) -> Config:
    """The configuration of a YAML file or preset, changed by `key.sub=value` words.

    A file may build on another with `base: PRESET` or `base: FILE`; what comes out does not show it.
    """
    preset = path_or_preset in presets()
    tree = _tree(PRESETS / f"{path_or_preset}.yaml" if preset else Path(path_or_preset), path_or_preset)
    problems = [problem for word in overrides if (problem := _override(tree, word))]
    config = build(tree, problems)
    problems = check(config)
    if problems:
        raise ConfigError(problems)
    return config


def from_dict(tree: dict[str, Any]) -> Config:
    return build(tree, [])


def to_dict(config: Config) -> dict[str, Any]:
    return cast(dict[str, Any], _plain(asdict(config)))


def dump(config: Config) -> str:
    return dump_yaml(to_dict(config))


def changes(before: dict[str, Any], after: dict[str, Any], prefix: str = "") -> list[str]:
    """Settings that differ between two trees, as `key: old -> new`."""
    found = []
    for key in dict.fromkeys([*before, *after]):
        old, new = before.get(key), after.get(key)
        if isinstance(old, dict) and isinstance(new, dict):
            found += changes(old, new, f"{prefix}{key}.")
        elif old != new:
            found.append(f"{prefix}{key}: {old} -> {new}")
    return found


def presets() -> list[str]:
    return sorted(path.stem for path in PRESETS.glob("*.yaml"))


def _tree(path: Path, word: str, above: tuple[Path, ...] = ()) -> dict[str, Any]:
    """The settings of a file on top of those of its base. `above` are the files whose base this one is."""
    tree = _read(path, word, above)
    if "base" not in tree:
        return tree
    base = tree.pop("base")
    if not isinstance(base, str) or not base:
        raise ConfigError(
            [ConfigProblem(f"{path}: base", f"{shown(base)} is not allowed", "name a preset or a YAML file")]
        )
    below = PRESETS / f"{base}.yaml" if base in presets() else path.parent / base
    chain = (*above, path)
    if any(below.resolve() == file.resolve() for file in chain):
        circle = " -> ".join(file.name for file in (*chain, below))
        raise ConfigError(
            [ConfigProblem(f"{path}: base", f"goes in a circle: {circle}", "let one of them have no base")]
        )
    # Not the base's name: two runs that differ would share a folder.
    return _merged(_tree(below, base, chain), {"name": path.stem, **tree})


def _read(path: Path, word: str, above: tuple[Path, ...]) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError([_unreadable(path, word, above, error)]) from error
    try:
        tree = parse_yaml(text)
    except YamlError as error:
        raise ConfigError([ConfigProblem(str(path), str(error), "mend the YAML")]) from error
    if not isinstance(tree, dict):
        raise ConfigError(
            [ConfigProblem(str(path), f"is {shown(tree)}, not a mapping of settings", "start with `name: ...`")]
        )
    return tree


def _unreadable(path: Path, word: str, above: tuple[Path, ...], error: Exception) -> ConfigProblem:
    """Names the nearest of what could have been meant: a preset, or for a base also a file beside the one it is in."""
    reason = getattr(error, "strerror", None) or str(error)
    beside = sorted(file.name for file in above[-1].parent.glob("*.y*ml")) if above else []
    near = nearest_word(word, [*presets(), *beside])
    kind = "the preset " if near in presets() else ""
    fix = f"did you mean {kind}{near}?" if near else f"give a YAML file or one of {', '.join(presets())}"
    where = f"{above[-1]}: base: {path}" if above else word
    return ConfigProblem(where, f"cannot be read ({reason})", fix)


def _merged(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Section by section. A model of another family has other settings: it begins anew."""
    merged = {**below, **above}
    for key, value in above.items():
        inner = below.get(key)
        if isinstance(value, dict) and isinstance(inner, dict):
            anew = key == "model" and value.get("family", inner.get("family")) != inner.get("family")
            merged[key] = value if anew else _merged(inner, value)
    return merged


def _override(tree: dict[str, Any], word: str) -> ConfigProblem | None:
    key, equals, text = word.partition("=")
    if not equals or not key:
        return ConfigProblem(word, "is no setting", "write overrides as key.sub=value")
    if key == "base":
        return ConfigProblem(word, "is for YAML files", f"start with `python -m trainer {text}`")
    try:
        value = parse_yaml(text)
    except YamlError as error:
        return ConfigProblem(key, f"{text!r} is no YAML value ({error})", "quote it")
    *sections, last = key.split(".")
    for name in sections:
        inner = tree.setdefault(name, {})
        if not isinstance(inner, dict):
            return ConfigProblem(key, f"{name} is {shown(inner)}, which has no settings inside")
        tree = inner
    tree[last] = value if text.strip() else ""
    return None


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    return list(value) if isinstance(value, tuple) else value
