"""The settings of a run for a person who watches it start: a line per section, what was set before what was not."""

from __future__ import annotations

import textwrap
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any

from trainer.config.schema import Config
from trainer.config.yaml_text import dump_yaml

_DIM, _PLAIN = "\x1b[2m", "\x1b[0m"
_BAR, _HARD_SPACE = "|", "\N{NO-BREAK SPACE}"


def show(config: Config, where: str, width: int, *, is_terminal: bool) -> list[str]:
    """Every setting. `where` is the file that has them too; a terminal shows defaults dimmed."""
    sections = {"": _words(config)}
    for field in fields(config):
        section = getattr(config, field.name)
        if is_dataclass(section):
            sections[field.name] = _words(section, has_defaults=field.default_factory is not MISSING)
    indent = max(len(name) for name in sections) + 4
    lines = [f"settings, after the bar those left at their defaults; also in {where}"]
    for name, words in sections.items():
        wrapped = _wrapped(name, words, indent, width)
        lines += _dimmed(wrapped, indent) if is_terminal else wrapped
    return lines


def _words(section: Any, *, has_defaults: bool = True) -> list[str]:
    """`key=value` of what differs from the default, a bar, and the rest. A model is chosen as a whole."""
    own: list[str] = []
    defaults: list[str] = []
    for field in fields(section):
        value = getattr(section, field.name)
        if not is_dataclass(value):
            is_default = has_defaults and value == _default(field)
            (defaults if is_default else own).append(f"{field.name}={_text(value)}")
    # The bar and the word after it stay on one line.
    return [*own, f"{_BAR}{_HARD_SPACE}{defaults[0]}", *defaults[1:]] if defaults else own


def _default(field: Field[Any]) -> Any:
    return None if field.default is MISSING else field.default


def _text(value: Any) -> str:
    """As an override has it, without spaces."""
    if value == "":
        return ""
    plain = list(value) if isinstance(value, tuple) else value
    return dump_yaml(plain).removesuffix("...\n").strip().replace(", ", ",")


def _wrapped(name: str, words: list[str], indent: int, width: int) -> list[str]:
    lines = textwrap.wrap(
        " ".join(words),
        width,
        initial_indent=f"  {name}".ljust(indent),
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [line.replace(_HARD_SPACE, " ") for line in lines]


def _dimmed(lines: list[str], indent: int) -> list[str]:
    """From the bar on; line by line, so that a log or a pager that is cut stays readable."""
    done: list[str] = []
    is_default = False
    for line in lines:
        at = indent if is_default else line.find(f" {_BAR} ") + 1
        is_default = at > 0
        done.append(f"{line[:at]}{_DIM}{line[at:]}{_PLAIN}" if is_default else line)
    return done
