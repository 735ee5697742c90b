"""Print the receipt of a teardown: what was removed, kept or left, and what still costs money."""

from __future__ import annotations

from collections import Counter

from rich.table import Table

from cluster.catalog.prices import HOURS_PER_MONTH
from infra.engine.command_line import format_command
from infra.receipt import Item, Receipt
from muster.commands import screen


def print_receipt(receipt: Receipt, storage_removal: str) -> None:
    """Print a receipt; `storage_removal` explains how to remove a filesystem that was kept."""
    out = screen.out()
    if receipt.items:
        out.print(build_items_table(receipt), "")
    for note in receipt.notes:
        screen.say(note)
    for what in receipt.unseen:
        screen.print_failure(f"not searched: {what}")
    if receipt.caches:
        out.print(_caches_table(receipt), "")
        screen.say(f"delete the caches with `{receipt.drop_command}`")
    if receipt.usd_per_hour:
        per_month = receipt.usd_per_hour * HOURS_PER_MONTH
        screen.say(f"remaining cost: {receipt.usd_per_hour:.4f} USD per hour, {per_month:.2f} USD per month")
    if receipt.retained:
        screen.say(f"`{format_command('up', receipt.stack)}` uses what was kept")
        screen.say(f"to remove it too: {storage_removal}")
    if not receipt.left and not receipt.unseen:
        screen.print_success(f"{len(receipt.removed)} removed in {receipt.seconds:.1f} s, {_remainder(receipt)}")


def build_items_table(receipt: Receipt) -> Table:
    """Return the table of resources, with prices if any still costs money."""
    price = ["USD per hour"] if receipt.usd_per_hour else []
    size = ["size"] if any(item.size is not None for item in receipt.items) else []
    heads = ("", "what", "name", "created", "lived", *size, *price)
    table = screen.new_table(*heads, right=["lived", *size, *price], wraps=["name"])
    for item in (*receipt.left, *receipt.retained, *(item for item in receipt.removed if item.created)):
        lived = item.lived(receipt.when)
        table.add_row(
            _verdict(item),
            item.kind,
            item.name,
            item.created[:16].replace("T", " "),
            screen.format_duration(lived) if lived is not None else "",
            *([screen.format_size(item.size) if item.size is not None else ""] if size else []),
            *([f"{item.usd_per_hour:.4f}" if item.usd_per_hour and not item.removed else ""] if price else []),
        )
    for kind, count in Counter(item.kind for item in receipt.removed if not item.created).items():
        table.add_row("[green]removed[/green]", kind, f"[dim]{count}[/dim]")
    return table


def _remainder(receipt: Receipt) -> str:
    if not receipt.retained:
        return f"nothing of cluster {receipt.cluster} is left"
    return f"only kept resources of cluster {receipt.cluster} are left"


def _verdict(item: Item) -> str:
    if item.removed:
        return "[green]removed[/green]"
    return f"[yellow]kept[/yellow] [dim]({item.keep_reason})[/dim]" if item.keep_reason else "[red]LEFT[/red]"


def _caches_table(receipt: Receipt) -> Table:
    table = screen.new_table("kept as cache", "name", "size", right=["size"])
    for cache in receipt.caches:
        table.add_row(cache.what, cache.name, screen.format_size(cache.size) if cache.size is not None else "?")
    return table
