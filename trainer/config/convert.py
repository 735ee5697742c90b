"""A tree of plain values as the dataclass that it describes; strict, with every problem named at once."""

from __future__ import annotations

import difflib
import math
import types
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any, Literal, Union, cast, get_args, get_origin, get_type_hints

from trainer.config.errors import ConfigError, ConfigProblem
from trainer.config.schema import Config, Family, ModelConfig

# What other trainers call them.
OTHER_NAMES = {"learning_rate": "lr", "batch_size": "size", "micro_batch_size": "micro", "max_steps": "steps"}

FAMILIES: dict[str, type] = {get_args(get_type_hints(model)["family"])[0]: model for model in get_args(ModelConfig)}


def build(tree: dict[str, Any], problems: list[ConfigProblem]) -> Config:
    config = _section(Config, tree, "", problems)
    if problems:
        raise ConfigError(problems)
    return cast(Config, config)


def _section(cls: type, tree: Any, where: str, problems: list[ConfigProblem]) -> Any:
    """An instance of the dataclass, or None where something in it is wrong."""
    if not isinstance(tree, dict):
        fix = f"write {where}: {{key: value}}"
        problems.append(ConfigProblem(where, f"{shown(tree)} is not allowed, it is a section", fix))
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
            problems.append(ConfigProblem(path, "is missing", f"set {path} ({entry.metadata['doc']})"))
    return cls(**values) if len(problems) == before else None


def _value(entry: Field[Any], hint: Any, value: Any, where: str, problems: list[ConfigProblem]) -> Any:
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
        problems.append(ConfigProblem(where, f"{shown(outside[0])} is {outside[1]}", f"set it {_bounds(entry)}"))
    return converted


def _model(tree: Any, where: str, problems: list[ConfigProblem]) -> Any:
    family = tree.get("family") if isinstance(tree, dict) else None
    if not isinstance(family, str) or family not in FAMILIES:
        message = "is missing" if family is None else f"{shown(family)} is not a family"
        problems.append(_wrong(Family, family, f"{where}.family", ", ".join(FAMILIES), message))
        return None
    return _section(FAMILIES[family], tree, where, problems)


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
        elif option is float:
            if type(value) in (int, float) and math.isfinite(value):
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


def _wrong(hint: Any, value: Any, where: str, wanted: str, message: str = "") -> ConfigProblem:
    choices = [str(c) for option in _options(hint) if get_origin(option) is Literal for c in get_args(option)]
    near = nearest_word(str(value), choices) if isinstance(value, str) else ""
    fix = f"allowed: {wanted}" + (f" (did you mean {near}?)" if near else "")
    return ConfigProblem(where, message or f"{shown(value)} is not allowed", fix)


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


def field_paths(cls: type = Config, prefix: str = "") -> list[str]:
    """Every setting by its dotted name."""
    paths = []
    for name, hint in get_type_hints(cls).items():
        for section in sections(hint):
            paths += field_paths(section, f"{prefix}{name}.")
        if not sections(hint):
            paths.append(f"{prefix}{name}")
    return list(dict.fromkeys(paths))


def _unknown(key: str, where: str, known: list[str]) -> ConfigProblem:
    path = f"{where}.{key}" if where else key
    near = OTHER_NAMES.get(key, "") if OTHER_NAMES.get(key) in known else nearest_word(key, known)
    if near:
        return ConfigProblem(path, "no such setting", f"did you mean {where + '.' if where else ''}{near}?")
    if path in field_paths():
        return ConfigProblem(path, "no such setting of this family", f"known here: {', '.join(known)}")
    elsewhere = [p for p in field_paths() if p.rpartition(".")[2] == key] or difflib.get_close_matches(
        path, field_paths(), 1
    )
    fix = f"did you mean {elsewhere[0]}?" if elsewhere else f"known here: {', '.join(known)}"
    return ConfigProblem(path, "no such setting", fix)


def nearest_word(word: str, known: list[str]) -> str:
    return next(iter(difflib.get_close_matches(word, known, 1)), "")


def _options(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


def sections(hint: Any) -> list[type]:
    return [option for option in _options(hint) if is_dataclass(option) and isinstance(option, type)]


def shown(value: Any) -> str:
    return "empty" if value is None else repr(value)
