"""The subcommands of `muster backup`, which itself writes an archive."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from infra.home import DEFAULT_STACK
from muster.options import Stack

backup_app = typer.Typer(
    invoke_without_command=True, help="Archive queue, accounting and shared files, or list archives."
)


@backup_app.callback()
def backup(
    ctx: typer.Context,
    stack: Stack = DEFAULT_STACK,
    to: Annotated[Path | None, typer.Option("--to", help="Folder of the archive; by default .muster/backups.")] = None,
    files: Annotated[bool, typer.Option("--files/--no-files", help="Also the files of the shared storage.")] = True,
) -> None:
    """Write queue, accounting and shared files to one archive."""
    from muster.commands.backup import backup as run

    if ctx.invoked_subcommand is None:
        run(stack, to=to, files=files)


@backup_app.command("list")
def backup_list(
    stack: Annotated[str | None, typer.Option("--stack", "-s", help="Only the archives of this stack.")] = None,
) -> None:
    """List the archives with their contents."""
    from muster.commands.backup import list_backups

    list_backups(stack)
