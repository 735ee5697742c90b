"""Rules about settings that would have no effect, because another setting turns off what they are for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from typing import Any

from trainer.config.errors import ConfigProblem
from trainer.config.models import MoeConfig
from trainer.config.schema import Config


def check_effect(config: Config) -> Iterator[ConfigProblem]:
    """Check that settings of one choice, such as those of Muon, keep their defaults if another choice is made."""
    yield from _check_section("optimizer", config.optimizer, "name", {"muon": ("muon_momentum", "muon_exclude")})
    yield from _check_section("schedule", config.schedule, "kind", {"wsd": ("decay_share", "decay_shape")})
    if isinstance(config.model, MoeConfig):
        yield from _check_section(
            "model", config.model, "balance", {"loss": ("balance_loss",), "bias": ("balance_rate",)}
        )
    if not config.lora.rank:
        for name in _list_changed(config.lora):
            message = f"{_format(getattr(config.lora, name))}, but lora.rank is 0, which trains all weights"
            yield ConfigProblem(f"lora.{name}", message, "set lora.rank, such as to 16, or leave it out")


def _check_section(
    section: str, settings: Any, selector: str, owners: dict[str, tuple[str, ...]]
) -> Iterator[ConfigProblem]:
    """Check the settings that only one value of `selector` uses; `owners` lists them by that value."""
    choice, changed = getattr(settings, selector), _list_changed(settings)
    for owner, names in owners.items():
        for name in names:
            if choice != owner and name in changed:
                message = f"{_format(getattr(settings, name))} has no effect, because {section}.{selector} is {choice}"
                fix = f"leave it out, or set {section}.{selector} to {owner}"
                yield ConfigProblem(f"{section}.{name}", message, fix)


def _list_changed(settings: Any) -> list[str]:
    """Return the names of the settings that differ from their defaults."""
    return [entry.name for entry in fields(settings) if getattr(settings, entry.name) != entry.default]


def _format(value: Any) -> str:
    if isinstance(value, tuple):
        return str(list(value))
    return f"{value:g}" if isinstance(value, float) else str(value)
