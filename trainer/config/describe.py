"""Every setting in words, for the documentation and for --help; made from the schema."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any, cast, get_type_hints

from trainer.config.convert import FAMILIES, allowed_text
from trainer.config.load import presets
from trainer.config.schema import Config, ModelConfig
from trainer.config.yaml_text import dump_yaml


def markdown() -> str:
    lines = ["# Settings of the trainer", "", "Made from `trainer/config/schema.py`; do not edit.", ""]
    lines += [f"Presets: {', '.join(presets())}.", ""]
    lines += [
        "A YAML file may build on a preset or on another file: `base: llama-1b`, or a path from where it lies.",
        "",
    ]
    for title, rows in _groups():
        lines += [f"## {title}", "", "| setting | default | allowed | meaning |", "|---|---|---|---|"]
        lines += [f"| `{key}` | {_code(default)} | {allowed} | {doc} |" for key, default, allowed, doc in rows]
        lines.append("")
    return "\n".join(lines)


def text() -> str:
    lines = [f"presets: {', '.join(presets())}", "base: NAME in a YAML file builds on one of them, or on a file", ""]
    for title, rows in _groups():
        lines.append(title)
        for key, default, allowed, doc in rows:
            lines.append(f"  {key} = {default or '(must be given)'}")
            lines.append(f"      {doc} [{allowed}]")
        lines.append("")
    return "\n".join(lines)


Row = tuple[str, str, str, str]


def _groups() -> Iterator[tuple[str, list[Row]]]:
    """Title and rows (key, default, allowed, meaning) of each group of settings, in the schema's order."""
    hints = get_type_hints(Config)
    top = [
        entry for entry in fields(Config) if not is_dataclass(hints[entry.name]) and hints[entry.name] != ModelConfig
    ]
    yield "the run", [_row(entry, hints[entry.name], "") for entry in top]
    for entry in fields(Config):
        if hints[entry.name] == ModelConfig:
            for family, model in FAMILIES.items():
                yield f"model, family {family}", _rows(model, "model.")
        elif is_dataclass(hints[entry.name]):
            yield f"{entry.name}: {entry.metadata['doc']}", _rows(cast(type, hints[entry.name]), f"{entry.name}.")


def _rows(cls: type, prefix: str) -> list[Row]:
    hints = get_type_hints(cls)
    return [_row(entry, hints[entry.name], prefix) for entry in fields(cls)]


def _row(entry: Field[Any], hint: Any, prefix: str) -> Row:
    default = "" if entry.default is MISSING else _shown(entry.default)
    low, high = entry.metadata["low"], entry.metadata["high"]
    allowed = allowed_text(hint)
    if low is not None:
        allowed += f", {low:g} or more" if high is None else f", {low:g} to {high:g}"
    return f"{prefix}{entry.name}", default, allowed, entry.metadata["doc"]


def _shown(value: Any) -> str:
    plain = list(value) if isinstance(value, tuple) else value
    return "''" if value == "" else dump_yaml(plain).removesuffix("...\n").strip()


def _code(default: str) -> str:
    return f"`{default}`" if default else "must be given"
