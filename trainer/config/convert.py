"""Convert a tree of plain values to the Config dataclass, strictly, reporting every problem at once."""

from __future__ import annotations

import difflib
import math
import os
import types
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cache
from typing import Any, Literal, Union, cast, get_args, get_origin, get_type_hints

from trainer.config.errors import ConfigError, ConfigProblem
from trainer.config.models import Family, ModelConfig
from trainer.config.schema import Config

# Names that other trainers use for these settings.
FOREIGN_NAMES = {"learning_rate": "lr", "batch_size": "size", "micro_batch_size": "micro", "max_steps": "steps"}

# Seeds, steps and positions become tensors of int64.
LARGEST_WHOLE_NUMBER = 2**63 - 1

FAMILIES: dict[str, type] = {get_args(get_type_hints(model)["family"])[0]: model for model in get_args(ModelConfig)}

# Evaluating the annotations of a class takes longer than everything else that is done with a configuration.
_read_hints = cache(get_type_hints)


def build_config(tree: dict[str, Any], problems: list[ConfigProblem]) -> Config:
    """Return the Config of a tree, or raise a ConfigError with `problems` and those of the tree."""
    config = _build_section(Config, tree, "", problems)
    if problems:
        raise ConfigError(problems)
    return cast(Config, config)


def _build_section(cls: type, tree: Any, where: str, problems: list[ConfigProblem]) -> Any:
    """Return an instance of the dataclass, or None if anything in it is invalid."""
    if not isinstance(tree, dict):
        fix = f"write {where}: {{key: value}}"
        problems.append(ConfigProblem(where, f"must be a section, not {format_value(tree)}", fix))
        return None
    before = len(problems)
    hints = _read_hints(cls)
    problems += [_describe_unknown_key(str(key), where, list(hints)) for key in tree if key not in hints]
    values = {}
    for entry in fields(cls):
        path = f"{where}.{entry.name}" if where else entry.name
        if entry.name in tree:
            values[entry.name] = _build_value(entry, hints[entry.name], tree[entry.name], path, problems)
        elif entry.default is MISSING and entry.default_factory is MISSING:
            problems.append(ConfigProblem(path, "is missing", f"set {path} ({entry.metadata['doc']})"))
    return cls(**values) if len(problems) == before else None


def _build_value(entry: Field[Any], hint: Any, value: Any, where: str, problems: list[ConfigProblem]) -> Any:
    if hint == ModelConfig:
        return _build_model(value, where, problems)
    if is_dataclass(hint):
        return _build_section(cast(type, hint), value, where, problems)
    converted, allowed = _convert(hint, value)
    if allowed:
        problems.append(_describe_wrong_type(hint, value, where, allowed))
        return None
    violation = _find_bound_violation(entry, converted)
    if violation:
        problems.append(
            ConfigProblem(where, f"{format_value(violation[0])} is {violation[1]}", f"set it {_bounds(entry)}")
        )
    return _expand_home(converted) if entry.metadata["is_path"] else converted


def _expand_home(paths: Any) -> Any:
    """Return a path, or several, with the home folder in place of a leading ~: a shell leaves it in key=~/folder."""
    if isinstance(paths, tuple):
        return tuple(os.path.expanduser(path) for path in paths)
    return os.path.expanduser(paths)


def _build_model(tree: Any, where: str, problems: list[ConfigProblem]) -> Any:
    family = tree.get("family") if isinstance(tree, dict) else None
    if not isinstance(family, str) or family not in FAMILIES:
        message = "is missing" if family is None else f"{format_value(family)} is not a model family"
        problems.append(_describe_wrong_type(Family, family, f"{where}.family", ", ".join(FAMILIES), message))
        return None
    return _build_section(FAMILIES[family], tree, where, problems)


def _convert(hint: Any, value: Any) -> tuple[Any, str]:
    """Return the value in the type of the hint and "", or None and a text that says what is allowed."""
    options = _options(hint)
    for option in options:
        if get_origin(option) is Literal:
            for allowed in get_args(option):
                if value == allowed and type(value) is type(allowed):
                    return value, ""
        elif get_origin(option) is tuple and isinstance(value, list | tuple):
            items = [_convert(get_args(option)[0], item) for item in value]
            if not any(allowed for _, allowed in items):
                return tuple(item for item, _ in items), ""
        elif option is float:
            if type(value) in (int, float) and math.isfinite(value):
                return float(value), ""
        elif type(value) is option:
            return value, ""
    return None, " or ".join(describe_type(option) for option in options)


def describe_type(hint: Any) -> str:
    """Return the values that a type allows, in words."""
    if get_origin(hint) is Literal:
        return ", ".join(str(choice) or "empty" for choice in get_args(hint))
    if get_origin(hint) is tuple:
        return f"list of {describe_type(get_args(hint)[0])}s"
    if get_origin(hint) in (Union, types.UnionType):
        return " or ".join(describe_type(option) for option in get_args(hint))
    type_names: dict[Any, str] = {int: "whole number", float: "number", bool: "true or false", str: "text"}
    return type_names[hint]


def _describe_wrong_type(hint: Any, value: Any, where: str, allowed: str, message: str = "") -> ConfigProblem:
    choices = [str(c) for option in _options(hint) if get_origin(option) is Literal for c in get_args(option)]
    near = find_similar(str(value), choices) if isinstance(value, str) else ""
    fix = f"allowed: {allowed}" + (f" (did you mean {near}?)" if near else "")
    if isinstance(value, bool) and (choices or str in _options(hint)):
        # The value may have been typed as one of these words.
        fix += " (YAML reads on and yes as true, off and no as false; quote a text)"
    return ConfigProblem(where, message or f"{format_value(value)} is not allowed", fix)


def _find_bound_violation(entry: Field[Any], value: Any) -> tuple[Any, str] | None:
    low, high = entry.metadata["low"], entry.metadata["high"]
    for number in value if isinstance(value, tuple) else (value,):
        if isinstance(number, int | float) and low is not None and number < low:
            return number, f"below {low:g}"
        if isinstance(number, int | float) and high is not None and number > high:
            return number, f"above {high:g}"
        if isinstance(number, int) and number > LARGEST_WHOLE_NUMBER:
            return number, f"above {LARGEST_WHOLE_NUMBER}, the largest whole number of 64 bits"
    return None


def _bounds(entry: Field[Any]) -> str:
    low, high = entry.metadata["low"], entry.metadata["high"]
    if low is not None and high is not None:
        return f"from {low:g} to {high:g}"
    return f"to {low:g} or more" if low is not None else f"to {high:g} or less"


def list_settings(cls: type = Config, prefix: str = "") -> list[str]:
    """Return the dotted names of all settings."""
    paths = []
    for name, hint in _read_hints(cls).items():
        for section in list_sections(hint):
            paths += list_settings(section, f"{prefix}{name}.")
        if not list_sections(hint):
            paths.append(f"{prefix}{name}")
    return list(dict.fromkeys(paths))


def _describe_unknown_key(key: str, where: str, allowed: list[str]) -> ConfigProblem:
    path = f"{where}.{key}" if where else key
    same_name = [p for p in list_settings() if p.rpartition(".")[2] == key]
    near = FOREIGN_NAMES.get(key, "") if FOREIGN_NAMES.get(key) in allowed else ""
    if not near and not same_name:
        near = find_similar(key, allowed)
    if near:
        return ConfigProblem(path, "no such setting", f"did you mean {where + '.' if where else ''}{near}?")
    if path in list_settings():
        return ConfigProblem(path, "no such setting for this model family", f"allowed here: {', '.join(allowed)}")
    elsewhere = same_name or difflib.get_close_matches(path, list_settings(), 1)
    fix = f"did you mean {elsewhere[0]}?" if elsewhere else f"allowed here: {', '.join(allowed)}"
    return ConfigProblem(path, "no such setting", fix)


def find_similar(word: str, candidates: list[str]) -> str:
    """Return the candidate that a misspelt word most likely means, or ""."""
    return next(iter(difflib.get_close_matches(word, candidates, 1)), "")


def _options(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


def list_sections(hint: Any) -> list[type]:
    """Return the dataclasses among the options of a type."""
    return [option for option in _options(hint) if is_dataclass(option) and isinstance(option, type)]


def format_value(value: Any) -> str:
    """Return a value as error messages quote it."""
    return "empty" if value is None else repr(value)
