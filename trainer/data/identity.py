"""The values that determine which samples a run sees in which order, and how they differ from a checkpoint's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from trainer.config.schema import Config
from trainer.data.interleave import scale_weights
from trainer.data.mixture import Mixture
from trainer.data.source import Source


def identify_data(source: Source, config: Config) -> dict[str, Any]:
    """Return the values to store in a checkpoint; paths are only names, so a folder may be moved."""
    data = config.data
    identity: dict[str, Any] = {"samples": source.length, "seed": config.run.seed, "seq_len": data.seq_len}
    identity["shuffle_shards"] = data.shuffle_shards
    if source.fingerprint:
        identity["content"] = source.fingerprint
    if isinstance(source, Mixture):
        identity["mixture"] = {
            ingredient.name: {
                "weight": ingredient.weight,
                "samples": ingredient.source.length,
                "content": ingredient.source.fingerprint,
            }
            for ingredient in source.ingredients
        }
    return identity


def list_data_changes(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Return a line for each value that differs; values that the checkpoint lacks are not compared."""
    sources_before = before.get("mixture", {})
    sources_now = _restore_names(sources_before, now.get("mixture", {}))
    # Weights are relative: 7 and 3 mean the same as 0.7 and 0.3.
    ignored = ("weight",) if _list_shares(sources_before) == _list_shares(sources_now) else ()
    lines = [
        line
        for name in dict.fromkeys([*sources_before, *sources_now])
        for line in _compare_sources(name, sources_before.get(name), sources_now.get(name), ignored)
    ]
    if sources_before and not lines and list(sources_before) != list(sources_now):
        lines.append(
            f"the sources are in another order: {', '.join(sources_before)} then, {', '.join(sources_now)} now"
        )
    # The figures of the whole mixture say nothing that those of its sources do not say.
    whole = ("samples", "content") if lines else ()
    return lines + [
        f"{name} {value} then, {now.get(name)} now"
        for name, value in before.items()
        if name not in ("mixture", *whole) and now.get(name) != value
    ]


def _restore_names(before: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    """Return the sources of now, under its name of before where a folder with the same content was renamed."""
    gone = {values["content"]: name for name, values in before.items() if name not in now and values["content"]}
    names = {name: gone.pop(values["content"], name) for name, values in now.items() if name not in before}
    return {names.get(name, name): values for name, values in now.items()}


def _list_shares(sources: dict[str, Any]) -> list[int]:
    return scale_weights([values["weight"] for values in sources.values()])


def _compare_sources(
    name: str, before: dict[str, Any] | None, now: dict[str, Any] | None, ignored: Sequence[str]
) -> Iterator[str]:
    if before is None or now is None:
        yield f"source {name} was {'added' if before is None else 'removed'}"
        return
    for key, value in before.items():
        if key not in ignored and now.get(key) != value:
            yield f"{key} of source {name} {value} then, {now.get(key)} now"
