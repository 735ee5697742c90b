"""`muster cache`: lists or drops what is kept between clusters."""

from __future__ import annotations

import os

from infra.home import Home
from infra.receipt import CacheEntry
from infra.targets.registry import targets
from infra.targets.target import OnThisMachine
from muster.commands import screen


def list_caches() -> None:
    found = tuple(entry for host in _hosts() for entry in host.caches(Home.of(os.environ)))
    if not found:
        screen.print_success("no caches")
        return
    _show(found)
    screen.say("drop them with `make clean-cache`; the next `make setup` makes them again (minutes)")


def drop_caches() -> None:
    gone = tuple(entry for host in _hosts() for entry in host.drop_caches(Home.of(os.environ)))
    if gone:
        _show(gone)
    screen.print_success(f"dropped {len(gone)} caches" if gone else "no caches")


def _hosts() -> list[OnThisMachine]:
    return [target for target in targets().values() if isinstance(target, OnThisMachine)]


def _show(found: tuple[CacheEntry, ...]) -> None:
    table = screen.new_table("cache", "name", "size", right=["size"])
    for kept in found:
        table.add_row(kept.what, kept.name, screen.format_size(kept.size) if kept.size is not None else "?")
    screen.out().print(table)
