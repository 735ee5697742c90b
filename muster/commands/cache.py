"""`muster cache`: list or delete the caches that clusters share."""

from __future__ import annotations

import os

from infra.home import Home
from infra.receipt import CacheEntry
from infra.targets.mixins import OnThisMachine
from infra.targets.registry import targets
from muster.commands import screen


def list_caches() -> None:
    """Print the caches with their sizes."""
    entries = tuple(entry for host in _hosts() for entry in host.caches(Home.of(os.environ)))
    if not entries:
        screen.print_success("no caches")
        return
    _show(entries)
    screen.say("delete them with `make clean-cache`; the next `make setup` downloads or builds them again (minutes)")


def drop_caches() -> None:
    """Delete all caches and print what was deleted."""
    deleted = tuple(entry for host in _hosts() for entry in host.drop_caches(Home.of(os.environ)))
    if deleted:
        _show(deleted)
    screen.print_success(f"deleted {len(deleted)} caches" if deleted else "no caches")


def _hosts() -> list[OnThisMachine]:
    return [target for target in targets().values() if isinstance(target, OnThisMachine)]


def _show(entries: tuple[CacheEntry, ...]) -> None:
    table = screen.new_table("cache", "name", "size", right=["size"])
    for entry in entries:
        table.add_row(entry.what, entry.name, screen.format_size(entry.size) if entry.size is not None else "?")
    screen.out().print(table)
