"""The sections of `muster --help`: commands in the order in which a newcomer needs them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from typer.core import TyperGroup

SECTIONS: Mapping[str, tuple[str, ...]] = {
    "A cluster, from its stack file to teardown": (
        *("demo", "check", "cost", "rehearse", "up", "status", "ssh", "submit", "logs", "fabric", "teardown"),
    ),
    "A running cluster": ("upgrade", "backup", "restore", "rotate", "image", "alerts", "bootstrap", "output"),
    "Training and predictions": ("train", "kubernetes", "plan", "predict", "report", "emulate", "calibrate"),
    "This installation": ("state", "cache", "env", "schema", "golden"),
}
# Descriptions are not cut, which click does at the width of the terminal; they are wrapped.
_NO_LIMIT = 1000


class SectionedCommands(TyperGroup):
    """A group whose help lists its commands in sections."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        width = max(len(name) for names in SECTIONS.values() for name in names)
        for title, names in SECTIONS.items():
            commands = {name: self.get_command(ctx, name) for name in names}
            rows = [(f"{name:{width}}", each.get_short_help_str(_NO_LIMIT)) for name, each in commands.items() if each]
            with formatter.section(title):
                formatter.write_dl(rows)
