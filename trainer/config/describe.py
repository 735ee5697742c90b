"""Describe every setting, for the documentation and for `python -m trainer settings`; derived from the schema."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any, cast, get_type_hints

from trainer.config.convert import FAMILIES, describe_type
from trainer.config.load import list_presets
from trainer.config.models import ModelConfig
from trainer.config.schema import Config
from trainer.config.yaml_text import dump_yaml


def render_markdown() -> str:
    """Return docs/trainer-settings.md."""
    lines = ["# Settings of the trainer", ""]
    source = "`schema.py`, `communication.py` and `models.py` in `trainer/config`"
    lines += [f"Generated from {source} by `python -m trainer settings --markdown`; do not edit.", ""]
    lines += [f"Presets: {', '.join(list_presets())}.", ""]
    lines += [
        "A YAML file may extend a preset or another file: `base: llama-1b`, or a path relative to the file itself.",
        "",
    ]
    for title, rows in _list_groups():
        lines += [f"## {title}", "", "| setting | default | allowed | meaning |", "|---|---|---|---|"]
        lines += [f"| `{key}` | {_format_code(default)} | {allowed} | {doc} |" for key, default, allowed, doc in rows]
        lines.append("")
    return "\n".join(lines)


def render_text() -> str:
    """Return the settings as `python -m trainer settings` prints them."""
    lines = [f"presets: {', '.join(list_presets())}", "base: NAME in a YAML file extends a preset or another file", ""]
    for title, rows in _list_groups():
        lines.append(title)
        for key, default, allowed, doc in rows:
            lines.append(f"  {key} = {default or '(required)'}")
            lines.append(f"      {doc} [{allowed}]")
        lines.append("")
    return "\n".join(lines)


Row = tuple[str, str, str, str]
"""Key, default, allowed values and meaning of a setting."""


def _list_groups() -> Iterator[tuple[str, list[Row]]]:
    """Yield the title and the rows of each group of settings, in the schema's order."""
    hints = get_type_hints(Config)
    top = [
        entry for entry in fields(Config) if not is_dataclass(hints[entry.name]) and hints[entry.name] != ModelConfig
    ]
    yield "Top level", [_make_row(entry, hints[entry.name], "") for entry in top]
    for entry in fields(Config):
        if hints[entry.name] == ModelConfig:
            for family, model in FAMILIES.items():
                yield f"model: {family}", _list_rows(model, "model.")
        elif is_dataclass(hints[entry.name]):
            yield f"{entry.name}: {entry.metadata['doc']}", _list_rows(cast(type, hints[entry.name]), f"{entry.name}.")


def _list_rows(cls: type, prefix: str) -> list[Row]:
    hints = get_type_hints(cls)
    return [_make_row(entry, hints[entry.name], prefix) for entry in fields(cls)]


def _make_row(entry: Field[Any], hint: Any, prefix: str) -> Row:
    default = "" if entry.default is MISSING else _format_default(entry.default)
    low, high = entry.metadata["low"], entry.metadata["high"]
    allowed = describe_type(hint)
    if low is not None:
        allowed += f", {low:g} or more" if high is None else f", {low:g} to {high:g}"
    return f"{prefix}{entry.name}", default, allowed, entry.metadata["doc"]


def _format_default(value: Any) -> str:
    plain = list(value) if isinstance(value, tuple) else value
    return "''" if value == "" else dump_yaml(plain).removesuffix("...\n").strip()


def _format_code(default: str) -> str:
    return f"`{default}`" if default else "required"
