"""Show the settings of a run when it starts: a line per section, settings that differ from the defaults first."""

from __future__ import annotations

import textwrap
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any

from trainer.config.schema import Config
from trainer.config.yaml_text import dump_yaml

_DIM, _PLAIN = "\x1b[2m", "\x1b[0m"
_BAR, _HARD_SPACE = "|", "\N{NO-BREAK SPACE}"
_CONTINUED = " " * 6
"""Indent of the second line of a section; below the settings of the first, a long section name would take space."""


def show(config: Config, where: str, width: int, *, is_terminal: bool) -> list[str]:
    """Return lines with every setting; `where` is the file that also holds them. A terminal shows defaults dimmed."""
    sections = {"": _list_assignments(config)}
    for field in fields(config):
        section = getattr(config, field.name)
        if is_dataclass(section):
            sections[field.name] = _list_assignments(section, has_defaults=field.default_factory is not MISSING)
    indent = max(len(name) for name in sections) + 4
    lines = [f"settings (defaults after the bar), also in {where}"]
    for name, assignments in sections.items():
        wrapped = _wrap(name, assignments, indent, width)
        lines += _dim_defaults(wrapped) if is_terminal else wrapped
    return lines


def _list_assignments(section: Any, *, has_defaults: bool = True) -> list[str]:
    """Return `key=value` of the settings that differ from their defaults, then a bar, then the others.

    A section without defaults, such as the model, is chosen as a whole.
    """
    own: list[str] = []
    defaults: list[str] = []
    for field in fields(section):
        value = getattr(section, field.name)
        if not is_dataclass(value):
            is_default = has_defaults and value == _default(field)
            (defaults if is_default else own).append(f"{field.name}={_format_value(value)}")
    # The bar and the setting after it stay on one line.
    return [*own, f"{_BAR}{_HARD_SPACE}{defaults[0]}", *defaults[1:]] if defaults else own


def _default(field: Field[Any]) -> Any:
    return None if field.default is MISSING else field.default


def _format_value(value: Any) -> str:
    """Return the value as an override would have it, without spaces."""
    if value == "":
        return ""
    plain = list(value) if isinstance(value, tuple) else value
    return dump_yaml(plain).removesuffix("...\n").strip().replace(", ", ",")


def _wrap(name: str, assignments: list[str], indent: int, width: int) -> list[str]:
    lines = textwrap.wrap(
        " ".join(assignments),
        width,
        initial_indent=f"  {name}".ljust(indent),
        subsequent_indent=_CONTINUED,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [line.replace(_HARD_SPACE, " ") for line in lines]


def _dim_defaults(lines: list[str]) -> list[str]:
    """Dim everything after the bar, line by line, so that a truncated log or a pager stays readable."""
    dimmed: list[str] = []
    is_default = False
    for line in lines:
        start = len(_CONTINUED) if is_default else line.find(f" {_BAR} ") + 1
        is_default = start > 0
        dimmed.append(f"{line[:start]}{_DIM}{line[start:]}{_PLAIN}" if is_default else line)
    return dimmed
