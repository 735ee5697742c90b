"""Every setting of every model family rejects what its type and its bounds exclude, by name and without a delay."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import Field, fields, is_dataclass
from typing import Any, Literal, cast, get_args, get_origin, get_type_hints

import pytest

from trainer.config.convert import FAMILIES, LARGEST_WHOLE_NUMBER
from trainer.config.errors import ConfigError
from trainer.config.load import load
from trainer.config.models import ModelConfig
from trainer.config.schema import Config

PRESETS = {"gpt2": "tiny-gpt2", "resnet": "tiny-resnet", "mlp": "tiny-mlp", "mixtral": "tiny-moe"}
NOT_A_VALUE: list[Any] = [{"a": 1}, None, "nonsense", [[]], 1.5, -1, True, float("nan"), float("inf"), 10**30]
# A number that somebody types by mistake must not make a check search for minutes.
SLOWEST_S = 5.0

Setting = tuple[str, Any, Field[Any]]
"""Name, type and declaration."""


def list_settings(cls: type, prefix: str = "") -> Iterator[Setting]:
    hints = get_type_hints(cls)
    for entry in fields(cls):
        hint = hints[entry.name]
        if is_dataclass(hint):
            yield from list_settings(cast(type, hint), f"{prefix}{entry.name}.")
        elif hint != ModelConfig:
            yield f"{prefix}{entry.name}", hint, entry


def list_nonsense(hint: Any, entry: Field[Any]) -> list[Any]:
    """Return values that the type or the bounds of a setting exclude."""
    values = [value for value in NOT_A_VALUE if not is_allowed(hint, value)]
    low, high = entry.metadata["low"], entry.metadata["high"]
    numbers = {int, float} & {hint, *get_args(hint)}
    if numbers and low is not None:
        values.append(low - 1)
    if numbers and high is not None:
        values.append(high + 1)
    return values


def is_allowed(hint: Any, value: Any) -> bool:
    """Return whether the type alone allows a value."""
    if get_origin(hint) is Literal:
        return False
    if get_origin(hint) is tuple:
        return isinstance(value, list) and all(is_allowed(get_args(hint)[0], item) for item in value)
    if get_args(hint):
        return any(is_allowed(option, value) for option in get_args(hint))
    if hint is int:
        return type(value) is int and abs(value) <= LARGEST_WHOLE_NUMBER
    if hint is float:
        return type(value) is int or (type(value) is float and abs(value) < float("inf"))
    return type(value) is hint


def find_rejections(preset: str, overrides: list[str]) -> list[str]:
    # Of this process, however busy the machine is.
    began = time.process_time()
    try:
        load(preset, overrides)
        places = []
    except ConfigError as error:
        places = [problem.where for problem in error.problems]
    assert time.process_time() - began < SLOWEST_S, overrides
    return places


def write_override(name: str, value: Any) -> str:
    words = {"NaN": ".nan", "Infinity": ".inf"}
    text = json.dumps(value)
    return f"{name}={words.get(text, text)}"


@pytest.mark.nightly_cases("qwen3_moe", "mixtral", "qwen3", "qwen2", "mistral", "gpt2")
@pytest.mark.parametrize("section", ["general", *FAMILIES])
def test_values_outside_of_type_and_bounds_are_rejected_by_name(section: str) -> None:
    is_model = section in FAMILIES
    preset = PRESETS.get(section, "tiny-llama")
    family = [f"model.family={section}"] if is_model else []
    settings = list_settings(FAMILIES[section], "model.") if is_model else list_settings(Config)
    count = 0
    for name, hint, entry in settings:
        for value in list_nonsense(hint, entry):
            override = write_override(name, value)
            assert name in find_rejections(preset, [*family, override]), f"{override} is accepted"
            count += 1
    assert count > 20


def is_huge_allowed(hint: Any) -> bool:
    return int in (hint, *get_args(hint))


@pytest.mark.parametrize("section", ["general", *FAMILIES])
def test_the_largest_number_is_accepted_or_rejected_without_a_search(section: str) -> None:
    is_model = section in FAMILIES
    settings = list_settings(FAMILIES[section], "model.") if is_model else list_settings(Config)
    family = [f"model.family={section}"] if is_model else []
    names = [name for name, hint, _ in settings if is_huge_allowed(hint)]
    assert names
    for name in names:
        find_rejections(PRESETS.get(section, "tiny-llama"), [*family, f"{name}={LARGEST_WHOLE_NUMBER}"])
