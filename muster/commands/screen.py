"""The terminal: one console for what was asked, one for what went wrong, and the few shapes all commands share."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Collection, Iterable
from functools import cache

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.status import Status
from rich.table import Table
from rich.text import Text

from infra.engine.stop import Stop

# Wide enough that nothing is cut in a pipe or a log, where there is no window to fit into.
_PIPE_WIDTH = 160
_UNITS = {"B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}


@cache
def out() -> Console:
    return _console(stderr=False)


@cache
def err() -> Console:
    return _console(stderr=True)


def say(text: str) -> None:
    """One quiet line of progress."""
    out().print(f"[dim]{escape(text)}[/dim]")


def status(text: str) -> Status:
    """Show a spinner with `text` while the block runs; in a pipe nothing is shown."""
    return out().status(text)


class _Quiet:
    """A console that prints nothing: what a program reads must be JSON alone."""

    def say(self, text: str) -> None:
        """Print nothing."""

    def status(self, text: str) -> Status:
        """Show nothing."""
        return Status(text, console=Console(file=io.StringIO()))


def get_quiet_console() -> _Quiet:
    """Return a console for targets that prints nothing."""
    return _Quiet()


def print_success(text: str) -> None:
    out().print(f"[green]✓[/green] {escape(text)}")


def print_failure(text: str) -> None:
    out().print(f"[red]✗[/red] {escape(text)}")


def print_stop(stop: Stop) -> None:
    first, *rest = stop.what.splitlines() or [""]
    print_hanging(err(), Text.assemble(("✗", "red"), " "), first)
    for line in rest:
        text = line.lstrip()
        print_hanging(err(), Text(" " * (2 + len(line) - len(text))), text)
    if stop.fix:
        print_hanging(err(), Text.assemble("  ", ("fix:", "dim"), " "), stop.fix)


def print_hanging(console: Console, lead: Text, text: str) -> None:
    """A line whose continuation, in a window too narrow for it, stands under its beginning."""
    if not console.is_terminal:
        console.print(lead + Text(text), soft_wrap=True)
        return
    blank = Text(" " * lead.cell_len)
    wrapped = Text(text).wrap(console, max(console.width - lead.cell_len, 1))
    for number, line in enumerate(wrapped or [Text("")]):
        console.print((blank if number else lead) + line, soft_wrap=True)


def print_next_steps(commands: Iterable[tuple[str, str]]) -> None:
    """What to type next: command and what it does."""
    pairs = list(commands)
    width = max(len(command) for command, _ in pairs)
    for command, what in pairs:
        out().print(f"  [bold]{escape(command):<{width}}[/bold]  [dim]{escape(what)}[/dim]")


def new_table(*columns: str, right: Collection[str] = (), wraps: Collection[str] = ()) -> Table:
    """Column heads in small, no lines but one under the head. Where room is short, only what `wraps` gives way."""
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0), header_style="dim")
    for name in columns:
        made.add_column(name, justify="right" if name in right else "left", no_wrap=name not in wraps)
    return made


def format_size(count: float) -> str:
    """Bytes as a person reads them."""
    unit = next((u for u in _UNITS if count < _UNITS[u] * 1000), "TB")
    return f"{count / _UNITS[unit]:.{1 if unit in ('GB', 'TB') else 0}f} {unit}"


def format_duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{seconds:.0f} s"


def _console(*, stderr: bool) -> Console:
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else max(_PIPE_WIDTH, int(os.environ.get("COLUMNS", "0") or 0))
    return Console(stderr=stderr, width=width, highlight=False)
