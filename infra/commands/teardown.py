"""`muster teardown`: destroys, looks by label for what is left, removes that too, and gives a receipt."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime

from rich.table import Table

from infra import receipt as receipts
from infra.commands import screen
from infra.commands.failure import explained
from infra.commands.kept_caches import caches
from infra.commands.ssh import inventory, unattended
from infra.commands.where import no_such, stack_home, traces
from infra.engine import lock, pulumi
from infra.engine.stop import FAILED, INTERRUPTED, Stop
from infra.engine.typed import typed
from infra.home import Home, StackHome
from infra.plan import names
from infra.providers import engine_client
from infra.providers.problem import Problem
from infra.receipt import Item, Receipt
from infra.spec.issue import SpecError
from infra.spec.load import read
from infra.targets import Leftover, Target, target

_RUNNING = "squeue -h -t RUNNING -o '%i|%u|%j'"
_ASK_S = 5.0
_SHOWN = 5


def teardown(name: str, *, yes: bool, force: bool) -> Receipt | None:
    stack = stack_home(name)
    with lock.held(stack, "teardown", wait=False, say=screen.say) as held:
        pulumi.wait_for_others(stack, wait=False, say=screen.say)
        known = cluster_of(stack)
        if known is None and not traces(stack):
            raise no_such(stack)
        if known is None:
            pulumi.forget(stack)
            shutil.rmtree(stack.folder, ignore_errors=True)
            screen.good(f"nothing to remove: nothing of stack {name} exists")
            return None
        cluster, of_target = known
        found = own(of_target.leftovers(cluster), name)
        if not found and not stack.state.exists():
            shutil.rmtree(stack.folder, ignore_errors=True)
            screen.good(f"nothing to remove: nothing of stack {name} (cluster {cluster}) exists")
            return None
        jobs = running_jobs(stack) if found else []
        if jobs and not force:
            raise busy(name, jobs)
        if not yes and not _confirmed(name, cluster, found):
            raise Stop("nothing was removed", code=FAILED)
        try:
            made = _remove(stack, cluster, of_target, found, held)
        except KeyboardInterrupt:
            raise Stop("teardown was interrupted", f"`{typed('teardown', name)}` goes on", INTERRUPTED) from None
        made = replace(made, notes=(*ended_jobs(jobs), *made.notes))
        path = receipts.save(made, stack.home.receipts)
    made = with_caches(made, stack.home)
    receipts.save(made, stack.home.receipts)
    _show(made)
    screen.say(f"receipt: {path}")
    if made.left:
        raise Stop(
            f"{len(made.left)} things are left, see above",
            f"look at {stack.log('destroy')}, then `{typed('teardown', name)}` again",
        )
    return made


def running_jobs(stack: StackHome) -> list[str]:
    """Those of a cluster that answers soon; one that does not is no reason to keep it."""
    try:
        known = inventory(stack)
        line = unattended(stack, known.controller.name, "root", [_RUNNING])
        done = subprocess.run(
            line, stdin=subprocess.DEVNULL, text=True, capture_output=True, timeout=_ASK_S, check=False
        )
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return []
    # The job across the nodes with which an interrupted `up` tested them is nobody's work.
    tests = {f"ready-{node.group}" for node in known.nodes}
    fields = [line.split("|", 2) for line in done.stdout.splitlines() if line.count("|") >= 2]  # noqa: PLR2004
    jobs = [f"{number} {job} ({user})" for number, user, job in fields if job not in tests]
    return jobs if done.returncode == 0 else []


def busy(name: str, jobs: list[str]) -> Stop:
    shown = ", ".join(jobs[:_SHOWN]) + (f" and {len(jobs) - _SHOWN} more" if len(jobs) > _SHOWN else "")
    return Stop(
        f"stack {name} runs {_jobs(len(jobs))}: {shown}; nothing was removed",
        f"wait for the end, or end what runs with the cluster: `{typed('teardown', name, 'FORCE=1')}`",
    )


def ended_jobs(jobs: list[str]) -> list[str]:
    return [f"{len(jobs)} running {'job' if len(jobs) == 1 else 'jobs'} ended: {', '.join(jobs)}"] if jobs else []


def cluster_of(stack: StackHome) -> tuple[str, Target] | None:
    """Cluster and target: from what `up` wrote, else the stack file, else labels; None where nothing exists."""
    try:
        written = json.loads(stack.inventory.read_text())
        return written["cluster"], target(written["target"])
    except (OSError, ValueError, KeyError):
        pass
    try:
        spec = read(stack.file)
        return spec.name, target(spec.target)
    except SpecError:
        return _labelled(stack.name)


def _labelled(stack: str) -> tuple[str, Target] | None:
    """No file says which cluster it is, but everything on this machine says which stack made it."""
    wanted = {"label": f"{names.STACK}={stack}"}
    with engine_client.asking(f"stack {stack}") as api:
        found = [*api.containers(all=True, filters=wanted), *api.networks(filters=wanted)]
        found += api.volumes(filters=wanted)["Volumes"] or []
    clusters = sorted({thing["Labels"][names.CLUSTER] for thing in found})
    if len(clusters) > 1:
        raise Stop(
            f"stack {stack} has no readable stack file, and several clusters carry its label: {', '.join(clusters)}",
            f"write the name of the one to remove into {stack_home(stack).file}",
        )
    return (clusters[0], target("local")) if clusters else None


def own(found: list[Leftover], stack: str) -> list[Leftover]:
    """Another stack may use the same cluster name by mistake; what is labelled as another's is not ours to remove."""
    return [leftover for leftover in found if leftover.stack in ("", stack)]


def _remove(stack: StackHome, cluster: str, of_target: Target, found: list[Leftover], held: int) -> Receipt:
    began = time.monotonic()
    notes = _destroy(stack, held)
    for leftover in own(of_target.leftovers(cluster), stack.name):
        try:
            of_target.remove(leftover)
        except Problem as problem:
            notes.append(str(problem))
    after = own(of_target.leftovers(cluster), stack.name)
    if not after:
        pulumi.forget(stack)
        shutil.rmtree(stack.folder, ignore_errors=True)
    return Receipt(
        stack=stack.name,
        cluster=cluster,
        at=datetime.now(UTC).isoformat(timespec="seconds"),
        seconds=round(time.monotonic() - began, 1),
        items=receipts.settle(map(_item, found), map(_item, after)),
        notes=tuple(notes),
    )


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


def _jobs(number: int) -> str:
    return "1 job" if number == 1 else f"{number} jobs"


def _item(leftover: Leftover) -> Item:
    return Item(leftover.kind, leftover.name, leftover.created)


def _confirmed(name: str, cluster: str, found: list[Leftover]) -> bool:
    if not screen.out().is_terminal:
        raise Stop("teardown asks before it removes, and nobody is there to answer", "add --yes")
    nodes = sum(leftover.kind == "container" for leftover in found)
    answer = screen.out().input(f"remove stack {name}: cluster {cluster}, {nodes} nodes and all data on them? [y/N] ")
    return answer.strip().lower() in ("y", "yes")


def _show(made: Receipt) -> None:
    out = screen.out()
    items = screen.table("", "what", "name", "created", "lived", right=["lived"])
    for item in (*made.left, *(item for item in made.removed if item.created)):
        lived = item.lived(made.when)
        items.add_row(
            "[green]removed[/green]" if item.removed else "[red]LEFT[/red]",
            item.kind,
            item.name,
            item.created[:19].replace("T", " "),
            screen.duration(lived) if lived is not None else "",
        )
    for kind, count in Counter(item.kind for item in made.removed if not item.created).items():
        items.add_row("[green]removed[/green]", kind, f"[dim]{count} of them[/dim]")
    if made.items:
        out.print(items, "")
    for note in made.notes:
        screen.say(note)
    if made.kept:
        out.print(_kept_table(made), "")
        screen.say(f"drop the caches with `{made.drop_command}`")
    if not made.left:
        screen.good(f"{len(made.removed)} removed in {made.seconds:.1f} s, nothing of cluster {made.cluster} is left")


def _kept_table(made: Receipt) -> Table:
    kept = screen.table("kept as cache", "name", "size", right=["size"])
    for cache in made.kept:
        kept.add_row(cache.what, cache.name, screen.size(cache.size) if cache.size is not None else "?")
    return kept
