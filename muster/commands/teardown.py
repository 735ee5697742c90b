"""`muster teardown`: destroys, looks by label for what is left, removes that too, and gives a receipt."""

from __future__ import annotations

import shutil
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime

from rich.table import Table

from cluster.catalog.prices import service_price
from infra import receipt as receipts
from infra.engine import lock, pulumi
from infra.engine.stop import FAILED, INTERRUPTED, Stop
from infra.engine.typed import typed
from infra.home import Home, StackHome
from infra.receipt import Item, Receipt
from infra.resources.problem import Problem
from infra.targets.aws.cost import HOURS_PER_MONTH
from infra.targets.local.caches import caches
from infra.targets.target import Leftover, Leftovers
from muster.commands import screen
from muster.commands.failure import explained
from muster.commands.known_cluster import KnownCluster, known_cluster
from muster.commands.teardown_jobs import Jobs, running_jobs
from muster.commands.where import no_such, stack_home, traces

# Machines take minutes to end, filesystems a quarter of an hour, and what they used is in use until then.
_SWEEP_S = 1200.0


def teardown(name: str, *, yes: bool, force: bool) -> Receipt | None:
    stack = stack_home(name)
    with lock.held(stack, "teardown", wait=False, say=screen.say) as held:
        pulumi.wait_for_others(stack, wait=False, say=screen.say)
        known = known_cluster(stack)
        if known is None and not traces(stack):
            raise no_such(stack)
        if known is None:
            pulumi.forget(stack)
            shutil.rmtree(stack.folder, ignore_errors=True)
            screen.good(f"nothing to remove: nothing of stack {name} exists")
            return None
        known.check_account()
        search = known.leftovers()
        found = search.found
        if not found and not search.unseen and not stack.state.exists():
            shutil.rmtree(stack.folder, ignore_errors=True)
            screen.good(f"nothing to remove: nothing of stack {name} (cluster {known.name}) exists")
            return None
        if not force and (stranger := _of_others(stack, known, found)):
            raise stranger
        with screen.out().status("asking whether jobs run"):
            jobs = running_jobs(stack, known) if found or search.unseen else Jobs()
        if not force and (busy := jobs.keep(name)):
            raise busy
        if not yes and not _confirmed(known, found):
            raise Stop("nothing was removed", code=FAILED)
        try:
            made = _remove(stack, known, found, held)
        except KeyboardInterrupt:
            raise Stop("teardown was interrupted", f"`{typed('teardown', name)}` goes on", INTERRUPTED) from None
        made = replace(made, notes=(*jobs.notes, *made.notes))
        path = receipts.save(made, stack.home.receipts)
    if known.on_this_machine:
        made = with_caches(made, stack.home)
    receipts.save(made, stack.home.receipts)
    _show(made)
    screen.say(f"receipt: {path}")
    if made.left:
        raise Stop(
            f"{len(made.left)} things are left, see above",
            f"look at {stack.log('destroy')}, then `{typed('teardown', name)}` again",
        )
    if made.unseen:
        raise Stop(
            "what was found is removed, but not everything could be looked at, see above",
            f"credentials that may list it, then `{typed('teardown', name)}` again",
        )
    return made


def _of_others(stack: StackHome, known: KnownCluster, found: list[Leftover]) -> Stop | None:
    """An account is shared, and so are the names in the examples: what this home has no trace of having made may be
    somebody else's. On this machine labels say whose it is."""
    made_here = any(path.exists() for path in (stack.state, stack.last_up, stack.inventory))
    if known.on_this_machine or made_here or not found:
        return None
    what = f"{len(found)} things in {known.region} carry the names of stack {known.stack} and cluster {known.name}, "
    return Stop(
        f"{what}but nothing in {stack.home.root} says that they were made from here; nothing was removed",
        f"look whose they are; if they are yours: `{typed('teardown', known.stack, 'FORCE=1')}`",
    )


def _remove(stack: StackHome, known: KnownCluster, found: list[Leftover], held: int) -> Receipt:
    """The state of what is kept is kept with it: the next `up` goes on with that storage."""
    began = time.monotonic()
    notes = [*_destroy(stack, held), *_sweep(known)]
    after = known.leftovers()
    if not after.found and not after.unseen:
        pulumi.forget(stack)
        shutil.rmtree(stack.folder, ignore_errors=True)
    return Receipt(
        stack=stack.name,
        cluster=known.name,
        at=datetime.now(UTC).isoformat(timespec="seconds"),
        seconds=round(time.monotonic() - began, 1),
        items=receipts.settle(map(_item, found), map(_item, after.found)),
        notes=(*notes, *_elsewhere(known, after)),
        unseen=after.unseen,
    )


def _elsewhere(known: KnownCluster, after: Leftovers) -> Iterator[str]:
    """The table has the prices of machines everywhere, all others of one region."""
    table = service_price("nat-gateway").region
    if known.region not in ("", table) and any(one.usd_per_hour and one.kind != "instance" for one in after.found):
        yield f"prices are those of {table}; {known.region} may cost up to a third more"


def _sweep(known: KnownCluster) -> Iterator[str]:
    """Removes what Pulumi left, or knew nothing of; what cannot be removed, in words."""
    with screen.out().status("looking for what is left") as line:
        until = time.monotonic() + _SWEEP_S
        for leftover in known.leftovers().found:
            if leftover.kept:
                continue
            line.update(f"removing {leftover.kind} {leftover.name}")
            try:
                known.target.remove(leftover, until)
            except Problem as problem:
                yield str(problem)


def with_caches(made: Receipt, home: Home) -> Receipt:
    """They are for information: an engine that does not say how large they are takes nothing from the receipt."""
    try:
        return replace(made, kept=caches(home))
    except Exception as failure:
        stop = explained(failure)
        if stop is None:
            raise
        return replace(made, notes=(*made.notes, f"caches could not be listed: {stop.what}"))


def _destroy(stack: StackHome, held: int) -> list[str]:
    """What Pulumi could not do is done by label afterwards, and noted."""
    if not stack.state.exists():
        return ["no Pulumi state: removed by label"]
    with screen.out().status("removing the cluster"):
        code, result = pulumi.destroy(stack, pulumi.Caller(held, lambda: None, screen.say))
    return [f"Pulumi: {failure.message}" for failure in result.failures] if code else []


def _item(leftover: Leftover) -> Item:
    return Item(leftover.kind, leftover.name, leftover.created, usd_per_hour=leftover.usd_per_hour, kept=leftover.kept)


def _confirmed(known: KnownCluster, found: list[Leftover]) -> bool:
    if not screen.out().is_terminal:
        raise Stop("teardown asks before it removes, and nobody is there to answer", "add --yes")
    nodes = sum(leftover.kind in ("container", "instance") for leftover in found)
    kept = [f"{leftover.kind} {leftover.name}" for leftover in found if leftover.kept]
    stays = f" ({', '.join(kept)} {'stays' if len(kept) == 1 else 'stay'})" if kept else ""
    what = f"remove stack {known.stack}: cluster {known.name}, {nodes} nodes and all data on them{stays}? [y/N] "
    answer = screen.out().input(what)
    return answer.strip().lower() in ("y", "yes")


def _show(made: Receipt) -> None:
    out = screen.out()
    if made.items:
        out.print(_items_table(made), "")
    for note in made.notes:
        screen.say(note)
    for what in made.unseen:
        screen.bad(f"not looked at: {what}")
    if made.kept:
        out.print(_kept_table(made), "")
        screen.say(f"drop the caches with `{made.drop_command}`")
    if made.usd_per_hour:
        per_month = made.usd_per_hour * HOURS_PER_MONTH
        screen.say(f"still paid for: {made.usd_per_hour:.4f} USD per hour, {per_month:.2f} USD per month")
    if made.stays:
        screen.say(f"`{typed('up', made.stack)}` goes on with what is kept")
        again = typed("teardown", made.stack)
        screen.say(f"to remove that too: delete the filesystems in AWS by hand, then `{again}`")
    if not made.left and not made.unseen:
        screen.good(f"{len(made.removed)} removed in {made.seconds:.1f} s, {_rest(made)}")


def _rest(made: Receipt) -> str:
    if not made.stays:
        return f"nothing of cluster {made.cluster} is left"
    return f"of cluster {made.cluster} only what is to be kept is left"


def _items_table(made: Receipt) -> Table:
    """Prices only where something is left to pay for."""
    price = ["USD per hour"] if made.usd_per_hour else []
    items = screen.table("", "what", "name", "created", "lived", *price, right=["lived", *price])
    for item in (*made.left, *made.stays, *(item for item in made.removed if item.created)):
        lived = item.lived(made.when)
        items.add_row(
            _word(item),
            item.kind,
            item.name,
            item.created[:19].replace("T", " "),
            screen.duration(lived) if lived is not None else "",
            *([f"{item.usd_per_hour:.4f}" if item.usd_per_hour and not item.removed else ""] if price else []),
        )
    for kind, count in Counter(item.kind for item in made.removed if not item.created).items():
        items.add_row("[green]removed[/green]", kind, f"[dim]{count} of them[/dim]")
    return items


def _word(item: Item) -> str:
    if item.removed:
        return "[green]removed[/green]"
    return f"[yellow]kept[/yellow] [dim]({item.kept})[/dim]" if item.kept else "[red]LEFT[/red]"


def _kept_table(made: Receipt) -> Table:
    kept = screen.table("kept as cache", "name", "size", right=["size"])
    for cache in made.kept:
        kept.add_row(cache.what, cache.name, screen.size(cache.size) if cache.size is not None else "?")
    return kept
