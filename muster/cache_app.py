"""The subcommands of `muster cache`."""

from __future__ import annotations

import typer

cache_app = typer.Typer(no_args_is_help=True, help="List or delete cached images, environments and tools.")


@cache_app.command("list")
def cache_list() -> None:
    """List the caches with their sizes."""
    from muster.commands.cache import list_caches

    list_caches()


@cache_app.command("drop")
def cache_drop() -> None:
    """Delete all caches, unless a cluster is using them."""
    from muster.commands.cache import drop_caches

    drop_caches()
