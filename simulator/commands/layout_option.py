"""A layout from words: `dp=8,tp=4,pp=2,micro_batch=1,global_batch=512`."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, get_args, get_type_hints

from simulator.layout import Layout
from simulator.model import Transformer
from simulator.rows.run import check_divisibility
from simulator.rows.values import RowError
from trainer.config.errors import ConfigError, ConfigProblem

WHERE = "--layout"
TRUTHS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


def layout(words: str, dtype: str = "bf16") -> Layout:
    """Every field of `Layout` by its name; ConfigError names each word that cannot be meant.

    Where the words have no global batch it is one micro-batch of each replica; `dtype` where they have none.
    """
    found: dict[str, Any] = {}
    problems = []
    for word in filter(None, map(str.strip, words.split(","))):
        name, _, text = word.partition("=")
        if name in found:
            message = f"{text!r}, and {str(found[name])!r} before it; allowed: once"
            problems.append(ConfigProblem(f"{WHERE} {name}", message, "leave one of them out"))
            continue
        try:
            found[name] = _value(name, text)
        except ValueError as bad:
            problems.append(ConfigProblem(f"{WHERE} {name}", f"{text!r}; {bad}", "write name=value,name=value"))
    if not problems:
        found.setdefault("dtype", dtype)
        found.setdefault("global_batch", found.get("micro_batch", 1) * found.get("dp", 1))
        problems = _divided(Layout(**found))
    if problems:
        raise ConfigError(problems)
    return Layout(**found)


def check(model: Transformer, one: Layout) -> None:
    """ConfigError where the model cannot be split so, by the same rules as a row of `predict`."""
    if one.ep > 1 and model.experts is None:
        raise ConfigError(
            [ConfigProblem(f"{WHERE} ep", f"{one.ep}; allowed: 1, the model has no experts", "leave it out")]
        )
    try:
        check_divisibility(model, one)
    except RowError as bad:
        raise ConfigError([ConfigProblem("", f"{WHERE} {bad}")]) from None


def uneven(model: Transformer, one: Layout) -> str:
    """What is to be said of stages that are not alike; empty where they are."""
    if model.layers % one.pp == 0:
        return ""
    most = -(-model.layers // one.pp)
    return f"uneven stages: {model.layers} layers on pp={one.pp}; timed by the longest, {most} layers, others have less"


def _value(name: str, text: str) -> Any:
    kinds = get_type_hints(Layout)
    if name not in kinds:
        raise ValueError(f"allowed names: {', '.join(field.name for field in fields(Layout))}")
    choices = get_args(kinds[name])
    if choices:
        return _chosen(text, choices)
    if kinds[name] is bool:
        if text not in TRUTHS:
            raise ValueError("allowed: true or false")
        return TRUTHS[text]
    return _number(text, kinds[name], least=0 if name == "shard" else 1)


def _chosen(text: str, choices: tuple[Any, ...]) -> Any:
    for choice in choices:
        if text == str(choice):
            return choice
    raise ValueError(f"allowed: {', '.join(str(choice) for choice in choices if choice != '')}")


def _number(text: str, kind: type, least: int) -> Any:
    try:
        number = kind(text)
    except ValueError:
        raise ValueError("allowed: a number") from None
    if kind is float and not 0 < number <= 1:
        raise ValueError("allowed: above 0, up to 1")
    if kind is int and number < least:
        raise ValueError(f"allowed: {least} or more")
    return number


def _divided(one: Layout) -> list[ConfigProblem]:
    samples, ranks = one.micro_batch * one.dp, one.dp * one.cp
    if one.global_batch % samples:
        message = f"{one.global_batch}; allowed: a multiple of micro_batch x dp = {samples}"
        return [ConfigProblem(f"{WHERE} global_batch", message, f"use {-(-one.global_batch // samples) * samples}")]
    if ranks % one.ep:
        return [ConfigProblem(f"{WHERE} ep", f"{one.ep}; allowed: a divisor of dp x cp = {ranks}", "change ep or dp")]
    if one.shard and ranks % one.shard:
        message = f"{one.shard}; allowed: a divisor of dp x cp = {ranks}, or 0 for all of them"
        return [ConfigProblem(f"{WHERE} shard", message, "change shard or dp")]
    return []
