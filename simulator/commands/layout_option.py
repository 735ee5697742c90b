"""Parse a layout from an option: `dp=8,tp=4,pp=2,micro_batch=1,global_batch=512`."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, get_args, get_type_hints

from simulator.job import DEFAULT_LAYOUT
from simulator.layout import Layout
from simulator.model import Transformer
from simulator.rows.cells import RowError
from simulator.rows.run import check_divisibility
from trainer.config.errors import ConfigError, ConfigProblem

WHERE = "--layout"
ZERO_ALLOWED = ("shard", "chunk_tokens", "master_bytes", "moment_bytes")
BOOLEANS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


def parse_layout(text: str, dtype: str = "bf16") -> Layout:
    """Return the layout, given fields of `Layout` by name; raise ConfigError with every invalid term.

    The default global batch is one micro-batch for each replica; `dtype` is the default data type.
    """
    values: dict[str, Any] = {}
    problems = []
    for term in filter(None, map(str.strip, text.split(","))):
        name, _, value = term.partition("=")
        if name in values:
            message = f"{value!r}, but already set to {str(values[name])!r}; allowed: once"
            problems.append(ConfigProblem(f"{WHERE} {name}", message, "leave one of them out"))
            continue
        try:
            values[name] = _parse_value(name, value)
        except ValueError as error:
            problems.append(ConfigProblem(f"{WHERE} {name}", f"{value!r}; {error}", "write name=value,name=value"))
    if not problems:
        values.setdefault("dtype", dtype)
        if not values.keys() & {"trainer", "framework", "loss"}:
            values = {"loss": DEFAULT_LAYOUT.loss, "chunk_tokens": DEFAULT_LAYOUT.chunk_tokens, **values}
        values.setdefault("global_batch", values.get("micro_batch", 1) * values.get("dp", 1))
        problems = _division_problems(Layout(**values))
    if problems:
        raise ConfigError(problems)
    return Layout(**values)


def check(model: Transformer, layout: Layout) -> None:
    """Raise ConfigError if the model cannot be split this way, by the same rules as a row of `predict`."""
    if layout.ep > 1 and model.experts is None:
        raise ConfigError(
            [ConfigProblem(f"{WHERE} ep", f"{layout.ep}; allowed: 1, the model has no experts", "leave it out")]
        )
    try:
        check_divisibility(model, layout)
    except RowError as error:
        raise ConfigError([ConfigProblem("", f"{WHERE} {error}")]) from None


def describe_uneven_stages(model: Transformer, layout: Layout) -> str:
    """Return a note if pipeline stages differ in size; empty if they are equal."""
    if model.layers % layout.pp == 0:
        return ""
    most = -(-model.layers // layout.pp)
    return f"uneven stages: {model.layers} layers on pp={layout.pp}; timed by the longest, which has {most} layers"


def _parse_value(name: str, text: str) -> Any:
    kinds = get_type_hints(Layout)
    if name not in kinds:
        raise ValueError(f"allowed names: {', '.join(field.name for field in fields(Layout))}")
    choices = get_args(kinds[name])
    # A number that may also be None, which is the default.
    is_optional = type(None) in choices
    if choices and not is_optional:
        return _parse_choice(text, choices)
    kind = choices[0] if is_optional else kinds[name]
    if kind is bool:
        if text not in BOOLEANS:
            raise ValueError("allowed: true or false")
        return BOOLEANS[text]
    return _parse_number(text, kind, least=0 if name in ZERO_ALLOWED else 1, most=1 if name == "compression" else None)


def _parse_choice(text: str, choices: tuple[Any, ...]) -> Any:
    for choice in choices:
        if text == str(choice):
            return choice
    raise ValueError(f"allowed: {', '.join(str(choice) for choice in choices if choice != '')}")


def _parse_number(text: str, kind: type, least: int, most: int | None) -> Any:
    try:
        number = kind(text)
    except ValueError:
        raise ValueError("allowed: a number") from None
    if most is not None and not 0 < number <= most:
        raise ValueError(f"allowed: above 0, up to {most}")
    if most is None and not number >= least:
        raise ValueError(f"allowed: {least} or more")
    return number


def _division_problems(layout: Layout) -> list[ConfigProblem]:
    samples, ranks = layout.micro_batch * layout.dp, layout.dp * layout.cp
    if layout.global_batch % samples:
        message = f"{layout.global_batch}; allowed: a multiple of micro_batch x dp = {samples}"
        return [ConfigProblem(f"{WHERE} global_batch", message, f"use {-(-layout.global_batch // samples) * samples}")]
    if ranks % layout.ep:
        return [
            ConfigProblem(f"{WHERE} ep", f"{layout.ep}; allowed: a divisor of dp x cp = {ranks}", "change ep or dp")
        ]
    if layout.shard and ranks % layout.shard:
        message = f"{layout.shard}; allowed: a divisor of dp x cp = {ranks}, or 0 for all of them"
        return [ConfigProblem(f"{WHERE} shard", message, "change shard or dp")]
    return []
