"""The subcommands of `muster state`."""

from __future__ import annotations

from typing import Annotated

import typer

from infra.home import DEFAULT_STACK
from muster.options import Json, Stack

state_app = typer.Typer(no_args_is_help=True, help="Share Pulumi's state with other operators, and repair it.")
_StateUrl = Annotated[str, typer.Argument(help="URL such as s3://BUCKET/PREFIX?region=REGION, or `file`.")]


@state_app.command("show")
def state_show(stack: Stack = DEFAULT_STACK, as_json: Json = False) -> None:
    """Show where the state is, who locked it, and its versions."""
    from muster.commands.state import show

    show(stack, as_json=as_json)


@state_app.command("create")
def state_create(url: _StateUrl) -> None:
    """Create a private, encrypted, versioned bucket for the state."""
    from muster.commands.state import create

    create(url)


@state_app.command("use")
def state_use(url: _StateUrl) -> None:
    """Use the state at a URL, which another operator shares."""
    from muster.commands.state import use

    use(url)


@state_app.command("move")
def state_move(url: _StateUrl) -> None:
    """Move the state to a URL. The old one stays until the new one is verified."""
    from muster.commands.state_move import move

    move(url)


@state_app.command("unlock")
def state_unlock(
    stack: Stack = DEFAULT_STACK,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
) -> None:
    """Release the lock of a command that is gone."""
    from muster.commands.state import unlock

    unlock(stack, yes=yes)


@state_app.command("restore")
def state_restore(
    version: Annotated[str, typer.Argument(help="Version, as `muster state show` prints it.")],
    stack: Stack = DEFAULT_STACK,
) -> None:
    """Restore an earlier version of a damaged state."""
    from muster.commands.state import restore

    restore(stack, version)
