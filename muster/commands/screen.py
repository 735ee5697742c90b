"""Print to the terminal: the consoles for output and errors, and the formats that all commands share."""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Collection, Iterable
from functools import cache
from typing import IO, TextIO, cast

from rich import box
from rich.console import Console, OverflowMethod
from rich.markup import escape
from rich.status import Status
from rich.table import Table
from rich.text import Text

from infra.engine.stop import Stop

# No line is this long, so that nothing is wrapped in a pipe or a log.
_PIPE_WIDTH = 10_000
# Next to their commands, descriptions fit into a terminal of this width; longer ones get lines of their own.
_HINT_WIDTH = 80
_TRAILING_SPACES = re.compile(r" +$", re.MULTILINE)
_INDENT = Text("  ")
# The indent of a line, with the name that it describes if two spaces follow that.
_LISTED = re.compile(r"\s*(?:\S+\s{2,})?")
_UNITS = {"B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}


@cache
def out() -> Console:
    """Return the console for output."""
    return _console(stderr=False)


@cache
def err() -> Console:
    """Return the console for errors."""
    return _console(stderr=True)


def say(text: str) -> None:
    """Print a dimmed line, for progress and notes; in a terminal, wrapped lines are indented."""
    console = out()
    if not console.is_terminal:
        console.print(Text(text, style="dim"))
        return
    for paragraph in text.split("\n"):
        for number, line in enumerate(_wrap(console, Text(paragraph, style="dim"), console.width - len(_INDENT))):
            console.print(_INDENT + line if number else line, soft_wrap=True)


def status(text: str) -> Status:
    """Show a spinner with `text` while the block runs, in a terminal only."""
    return out().status(text)


class _Quiet:
    """A console that prints nothing, for output that must be JSON only."""

    def say(self, text: str) -> None:
        """Print nothing."""

    def status(self, text: str) -> Status:
        """Show nothing."""
        return Status(text, console=Console(file=io.StringIO()))


def get_quiet_console() -> _Quiet:
    """Return a console for targets that prints nothing."""
    return _Quiet()


def print_success(text: str) -> None:
    """Print a line with a green tick."""
    out().print(f"[green]✓[/green] {escape(text)}")


def print_failure(text: str) -> None:
    """Print a line with a red cross."""
    out().print(f"[red]✗[/red] {escape(text)}")


def print_stop(stop: Stop) -> None:
    """Print an error and its fix to stderr."""
    first, *details = stop.what.splitlines() or [""]
    print_hanging(err(), Text.assemble(("✗", "red"), " "), first)
    for line in details:
        text = _LISTED.sub("", line, count=1)
        print_hanging(err(), Text(f"  {line.removesuffix(text)}"), text)
    if stop.fix:
        print_hanging(err(), Text.assemble("  ", ("fix:", "dim"), " "), stop.fix)


def print_hanging(console: Console, lead: Text, text: str) -> None:
    """Print a line after `lead`; in a terminal, wrapped lines are indented by the width of `lead`."""
    if not console.is_terminal:
        console.print(lead + Text(text), soft_wrap=True)
        return
    blank = Text(" " * lead.cell_len)
    for number, line in enumerate(_wrap(console, Text(text), console.width - lead.cell_len)):
        console.print((blank if number else lead) + line, soft_wrap=True)


def _wrap(console: Console, text: Text, columns: int) -> Iterable[Text]:
    """Return the lines of a text, without the spaces at which it was wrapped."""
    lines = text.wrap(console, max(columns, 1)) or [Text("")]
    for line in lines:
        line.rstrip()
    return lines


def print_next_steps(commands: Iterable[tuple[str, str]]) -> None:
    """Print commands to run next, each with its description."""
    pairs = list(commands)
    width = max(len(command) for command, _ in pairs)
    is_wide = width + max(len(what) for _, what in pairs) + 4 > _HINT_WIDTH
    for command, what in pairs:
        end = "\n     " if is_wide else " " * (width - len(command))
        out().print(f"  [bold]{escape(command)}[/bold]{end} [dim] {escape(what)}[/dim]", soft_wrap=True)


def new_table(*columns: str, right: Collection[str] = (), wraps: Collection[str] = ()) -> Table:
    """Return an empty table with one rule, under its head; only the columns in `wraps` wrap if it is too wide."""
    grid = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0), header_style="dim")
    for name in columns:
        wrap = name in wraps
        # A long word of a cell that may wrap continues on the next line.
        overflow: OverflowMethod = "fold" if wrap else "ellipsis"
        grid.add_column(name, justify="right" if name in right else "left", no_wrap=not wrap, overflow=overflow)
    return grid


def format_size(count: float) -> str:
    """Return a number of bytes with a suitable unit."""
    unit = next((u for u in _UNITS if count < _UNITS[u] * 1000), "TB")
    return f"{count / _UNITS[unit]:.{1 if unit in ('GB', 'TB') else 0}f} {unit}"


def format_duration(seconds: float) -> str:
    """Return a duration in its two largest units."""
    minutes, remainder = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {remainder} s" if minutes else f"{seconds:.0f} s"


def _console(*, stderr: bool) -> Console:
    stream = sys.stderr if stderr else sys.stdout
    if stream.isatty():
        return Console(stderr=stderr, highlight=False)
    return Console(file=cast("IO[str]", _Pipe(stderr=stderr)), width=_PIPE_WIDTH, highlight=False)


class _Pipe:
    """Standard output or error without the spaces that fill up the last column of a table."""

    def __init__(self, *, stderr: bool) -> None:
        self._stderr = stderr

    @property
    def encoding(self) -> str:
        return self._stream.encoding

    @property
    def _stream(self) -> TextIO:
        return sys.stderr if self._stderr else sys.stdout

    def isatty(self) -> bool:
        return False

    def fileno(self) -> int:
        return self._stream.fileno()

    def write(self, text: str) -> int:
        return self._stream.write(_TRAILING_SPACES.sub("", text))

    def flush(self) -> None:
        self._stream.flush()
