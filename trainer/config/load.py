"""From YAML and dotted overrides to a Config and back; strict, with every problem named at once."""

from __future__ import annotations

import difflib
import math
import types
from dataclasses import MISSING, Field, asdict, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, Union, cast, get_args, get_origin, get_type_hints

import yaml

from trainer.config.check import check
from trainer.config.problem import ConfigError, Problem
from trainer.config.schema import Config, Family, ModelConfig
from trainer.config.yaml_text import YamlError, dump_yaml, parse_yaml

PRESETS = Path(__file__).parent.parent / "configs"
FAMILIES: dict[str, type] = {get_args(get_type_hints(model)["family"])[0]: model for model in get_args(ModelConfig)}


def load(path_or_preset: str, overrides: list[str]) -> Config:
    """The configuration of a YAML file or preset, changed by `key.sub=value` words."""
    tree = _read(path_or_preset)
    problems = [problem for word in overrides if (problem := _override(tree, word))]
    config = _build_all(tree, problems)
    problems = check(config)
    if problems:
        raise ConfigError(problems)
    return config


def from_dict(tree: dict[str, Any]) -> Config:
    return _build_all(tree, [])


def to_dict(config: Config) -> dict[str, Any]:
    return cast(dict[str, Any], _plain(asdict(config)))


def dump(config: Config) -> str:
    return dump_yaml(to_dict(config))


def presets() -> list[str]:
    return sorted(path.stem for path in PRESETS.glob("*.yaml"))


def field_paths(cls: type = Config, prefix: str = "") -> list[str]:
    """Every setting by its dotted name."""
    paths = []
    for name, hint in get_type_hints(cls).items():
        for section in _sections(hint):
            paths += field_paths(section, f"{prefix}{name}.")
        if not _sections(hint):
            paths.append(f"{prefix}{name}")
    return list(dict.fromkeys(paths))


def _read(path_or_preset: str) -> dict[str, Any]:
    preset = PRESETS / f"{path_or_preset}.yaml"
    path = preset if path_or_preset in presets() else Path(path_or_preset)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        known = _nearest(path_or_preset, presets())
        fix = f"did you mean the preset {known}?" if known else f"give a YAML file or one of {', '.join(presets())}"
        raise ConfigError([Problem(path_or_preset, f"cannot be read ({reason})", fix)]) from error
    try:
        tree = parse_yaml(text)
    except YamlError as error:
        raise ConfigError([Problem(str(path), str(error), "mend the YAML")]) from error
    if not isinstance(tree, dict):
        raise ConfigError(
            [Problem(str(path), f"is {_shown(tree)}, not a mapping of settings", "start with `name: ...`")]
        )
    return tree


def _override(tree: dict[str, Any], word: str) -> Problem | None:
    key, equals, text = word.partition("=")
    if not equals or not key:
        return Problem(word, "is no setting", "write overrides as key.sub=value")
    try:
        value = parse_yaml(text)
    except (YamlError, yaml.YAMLError) as error:
        return Problem(key, f"{text!r} is no YAML value ({error})", "quote it")
    *sections, last = key.split(".")
    for name in sections:
        inner = tree.setdefault(name, {})
        if not isinstance(inner, dict):
            return Problem(key, f"{name} is {_shown(inner)}, which has no settings inside")
        tree = inner
    tree[last] = value if text.strip() else ""
    return None


def _build_all(tree: dict[str, Any], problems: list[Problem]) -> Config:
    config = _section(Config, tree, "", problems)
    if problems:
        raise ConfigError(problems)
    return cast(Config, config)


def _section(cls: type, tree: Any, where: str, problems: list[Problem]) -> Any:
    """An instance of the dataclass, or None where something in it is wrong."""
    if not isinstance(tree, dict):
        problems.append(
            Problem(where, f"is {_shown(tree)}, not a mapping of settings", f"write {where}: {{key: value}}")
        )
        return None
    before = len(problems)
    hints = get_type_hints(cls)
    problems += [_unknown(str(key), where, list(hints)) for key in tree if key not in hints]
    values = {}
    for entry in fields(cls):
        path = f"{where}.{entry.name}" if where else entry.name
        if entry.name in tree:
            values[entry.name] = _value(entry, hints[entry.name], tree[entry.name], path, problems)
        elif entry.default is MISSING and entry.default_factory is MISSING:
            problems.append(Problem(path, "is missing", f"it is the {entry.metadata['doc']}"))
    return cls(**values) if len(problems) == before else None


def _value(entry: Field[Any], hint: Any, value: Any, where: str, problems: list[Problem]) -> Any:
    if hint == ModelConfig:
        return _model(value, where, problems)
    if is_dataclass(hint):
        return _section(cast(type, hint), value, where, problems)
    converted, wanted = _convert(hint, value)
    if wanted:
        problems.append(_wrong(hint, value, where, wanted))
        return None
    outside = _outside(entry, converted)
    if outside:
        problems.append(Problem(where, f"{_shown(outside[0])} is {outside[1]}", f"set it {_bounds(entry)}"))
    return converted


def _model(tree: Any, where: str, problems: list[Problem]) -> Any:
    if not isinstance(tree, dict) or tree.get("family") not in FAMILIES:
        family = tree.get("family") if isinstance(tree, dict) else None
        message = "is missing" if family is None else f"{_shown(family)} is not a family"
        problems.append(_wrong(Family, family, f"{where}.family", ", ".join(FAMILIES), message))
        return None
    return _section(FAMILIES[tree["family"]], tree, where, problems)


def _convert(hint: Any, value: Any) -> tuple[Any, str]:
    """The value as the type wants it, or what would have been allowed."""
    options = _options(hint)
    for option in options:
        if get_origin(option) is Literal:
            for allowed in get_args(option):
                if value == allowed and type(value) is type(allowed):
                    return value, ""
        elif get_origin(option) is tuple and isinstance(value, list | tuple):
            items = [_convert(get_args(option)[0], item) for item in value]
            if not any(wanted for _, wanted in items):
                return tuple(item for item, _ in items), ""
        elif option is float and type(value) in (int, float) and math.isfinite(value):
            return float(value), ""
        elif type(value) is option:
            return value, ""
    return None, " or ".join(allowed_text(option) for option in options)


def allowed_text(hint: Any) -> str:
    """A type in words: what may stand there."""
    if get_origin(hint) is Literal:
        return ", ".join(str(choice) for choice in get_args(hint))
    if get_origin(hint) is tuple:
        return f"list of {allowed_text(get_args(hint)[0])}s"
    if get_origin(hint) in (Union, types.UnionType):
        return " or ".join(allowed_text(option) for option in get_args(hint))
    words: dict[Any, str] = {int: "whole number", float: "number", bool: "true or false", str: "text"}
    return words[hint]


def _wrong(hint: Any, value: Any, where: str, wanted: str, message: str = "") -> Problem:
    choices = [str(c) for option in _options(hint) if get_origin(option) is Literal for c in get_args(option)]
    near = _nearest(str(value), choices) if isinstance(value, str) else ""
    fix = f"allowed: {wanted}" + (f" (did you mean {near}?)" if near else "")
    return Problem(where, message or f"{_shown(value)} is not allowed", fix)


def _outside(entry: Field[Any], value: Any) -> tuple[Any, str] | None:
    low, high = entry.metadata["low"], entry.metadata["high"]
    for number in value if isinstance(value, tuple) else (value,):
        if isinstance(number, int | float) and low is not None and number < low:
            return number, f"below {low:g}"
        if isinstance(number, int | float) and high is not None and number > high:
            return number, f"above {high:g}"
    return None


def _bounds(entry: Field[Any]) -> str:
    low, high = entry.metadata["low"], entry.metadata["high"]
    if low is not None and high is not None:
        return f"from {low:g} to {high:g}"
    return f"to {low:g} or more" if low is not None else f"to {high:g} or less"


def _unknown(key: str, where: str, known: list[str]) -> Problem:
    path = f"{where}.{key}" if where else key
    near = _nearest(key, known)
    if near:
        return Problem(path, "no such setting", f"did you mean {where + '.' if where else ''}{near}?")
    elsewhere = [p for p in field_paths() if p.rpartition(".")[2] == key] or difflib.get_close_matches(
        path, field_paths(), 1
    )
    fix = f"did you mean {elsewhere[0]}?" if elsewhere else f"known here: {', '.join(known)}"
    return Problem(path, "no such setting", fix)


def _nearest(word: str, known: list[str]) -> str:
    return next(iter(difflib.get_close_matches(word, known, 1)), "")


def _options(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


def _sections(hint: Any) -> list[type]:
    return [option for option in _options(hint) if is_dataclass(option) and isinstance(option, type)]


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    return list(value) if isinstance(value, tuple) else value


def _shown(value: Any) -> str:
    return "empty" if value is None else repr(value)
