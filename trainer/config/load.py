"""From YAML and dotted overrides to a Config and back; strict, with every problem named at once."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

from trainer.config.check import check
from trainer.config.convert import build, nearest_word, shown
from trainer.config.problem import ConfigError, Problem
from trainer.config.schema import Config
from trainer.config.yaml_text import YamlError, dump_yaml, parse_yaml

PRESETS = Path(__file__).parent.parent / "configs"


def load(path_or_preset: str, overrides: list[str]) -> Config:
    """The configuration of a YAML file or preset, changed by `key.sub=value` words."""
    tree = _read(path_or_preset)
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


def _read(path_or_preset: str) -> dict[str, Any]:
    preset = PRESETS / f"{path_or_preset}.yaml"
    path = preset if path_or_preset in presets() else Path(path_or_preset)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        known = nearest_word(path_or_preset, presets())
        fix = f"did you mean the preset {known}?" if known else f"give a YAML file or one of {', '.join(presets())}"
        raise ConfigError([Problem(path_or_preset, f"cannot be read ({reason})", fix)]) from error
    try:
        tree = parse_yaml(text)
    except YamlError as error:
        raise ConfigError([Problem(str(path), str(error), "mend the YAML")]) from error
    if not isinstance(tree, dict):
        raise ConfigError(
            [Problem(str(path), f"is {shown(tree)}, not a mapping of settings", "start with `name: ...`")]
        )
    return tree


def _override(tree: dict[str, Any], word: str) -> Problem | None:
    key, equals, text = word.partition("=")
    if not equals or not key:
        return Problem(word, "is no setting", "write overrides as key.sub=value")
    try:
        value = parse_yaml(text)
    except YamlError as error:
        return Problem(key, f"{text!r} is no YAML value ({error})", "quote it")
    *sections, last = key.split(".")
    for name in sections:
        inner = tree.setdefault(name, {})
        if not isinstance(inner, dict):
            return Problem(key, f"{name} is {shown(inner)}, which has no settings inside")
        tree = inner
    tree[last] = value if text.strip() else ""
    return None


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    return list(value) if isinstance(value, tuple) else value
