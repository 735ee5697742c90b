"""The subcommands of `muster rotate`."""

from __future__ import annotations

from typing import Annotated

import typer

from infra.home import DEFAULT_STACK
from muster.options import Stack

rotate_app = typer.Typer(no_args_is_help=True, help="Replace secrets of a running cluster.")


@rotate_app.callback()
def group_commands() -> None:
    """Keep `keys` a subcommand: typer makes a single command the whole program."""


@rotate_app.command("keys")
def rotate_keys(
    stack: Stack = DEFAULT_STACK,
    wait: Annotated[
        bool, typer.Option("--wait", help="If another command is using this stack, wait for it instead of failing.")
    ] = False,
) -> None:
    """Replace the Slurm key; keep running and queued jobs."""
    from muster.commands.rotate import rotate_keys as run

    run(stack, wait=wait)
