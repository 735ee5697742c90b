"""The values that determine which samples a run sees in which order, and how they differ from a checkpoint's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from trainer.config.schema import Config
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
    sources_before, sources_now = before.get("mixture", {}), now.get("mixture", {})
    lines = [
        line
        for name in dict.fromkeys([*sources_before, *sources_now])
        for line in _compare_sources(name, sources_before.get(name), sources_now.get(name))
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


def _compare_sources(name: str, before: dict[str, Any] | None, now: dict[str, Any] | None) -> Iterator[str]:
    if before is None or now is None:
        yield f"source {name} was {'added' if before is None else 'removed'}"
        return
    for key, value in before.items():
        if now.get(key) != value:
            yield f"{key} of source {name} {value} then, {now.get(key)} now"
