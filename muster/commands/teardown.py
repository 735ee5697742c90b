"""`muster teardown`: destroy, look by label for what is left, remove that too, and print a receipt."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from cluster.catalog.prices import service_price
from infra import receipt as receipts
from infra.engine import lock, pulumi
from infra.engine.stop import FAILED, INTERRUPTED, Stop
from infra.engine.typed import typed
from infra.home import Home, StackHome
from infra.receipt import Item, Receipt
from infra.resources.problem import Problem
from infra.targets.target import Deployment, Leftover, Leftovers, ManagedStorage, OnThisMachine, Target
from muster.commands import receipt_table, screen
from muster.commands.failure import explain_failure
from muster.commands.stacks import has_traces, missing_stack_error, resolve_stack
from muster.commands.teardown_jobs import ClusterJobs, list_cluster_jobs
from muster.deployments import find_own_leftovers, search_deployment

# Machines take minutes to end, filesystems a quarter of an hour, and what they used is in use until then.
_SWEEP_TIMEOUT_S = 1200.0


@dataclass(frozen=True)
class _Cluster:
    """The cluster to remove."""

    stack: StackHome
    target: Target
    deployment: Deployment

    @property
    def name(self) -> str:
        return self.deployment.cluster

    def leftovers(self) -> Leftovers:
        return find_own_leftovers(self.target, self.deployment)


def teardown(name: str, *, yes: bool, force: bool) -> Receipt | None:
    """Remove the cluster of a stack and return the receipt; None where nothing exists."""
    stack = resolve_stack(name)
    with lock.held(stack, "teardown", wait=False, say=screen.say) as held:
        pulumi.wait_for_others(stack, wait=False, say=screen.say)
        cluster = _find(stack)
        if cluster is None:
            return None
        search = cluster.leftovers()
        if not search.found and not search.unseen and not stack.state.exists():
            _forget_folder(stack, f"nothing of stack {name} (cluster {cluster.name}) exists")
            return None
        jobs = _check_allowed(cluster, search, yes=yes, force=force)
        try:
            receipt = _remove(cluster, search.found, held)
        except KeyboardInterrupt:
            raise Stop("teardown was interrupted", f"`{typed('teardown', name)}` goes on", INTERRUPTED) from None
        receipt = replace(receipt, notes=(*jobs.notes, *receipt.notes))
        path = receipts.save(receipt, stack.home.receipts)
    if isinstance(cluster.target, OnThisMachine):
        receipt = with_caches(receipt, cluster.target, stack.home)
    receipts.save(receipt, stack.home.receipts)
    receipt_table.print_receipt(receipt, _storage_removal(cluster.target))
    screen.say(f"receipt: {path}")
    _check_complete(stack, receipt)
    return receipt


def _find(stack: StackHome) -> _Cluster | None:
    """Return the cluster of a stack; None where only files of the stack are left, which are then removed."""
    existing = search_deployment(stack)
    if existing is None and not has_traces(stack):
        raise missing_stack_error(stack)
    if existing is None:
        pulumi.forget(stack)
        _forget_folder(stack, f"nothing of stack {stack.name} exists")
        return None
    cluster = _Cluster(stack, *existing)
    cluster.target.check_access(cluster.deployment)
    return cluster


def _forget_folder(stack: StackHome, why: str) -> None:
    shutil.rmtree(stack.folder, ignore_errors=True)
    screen.print_success(f"nothing to remove: {why}")


def _check_allowed(cluster: _Cluster, search: Leftovers, *, yes: bool, force: bool) -> ClusterJobs:
    """Raise Stop where the cluster may be somebody else's, jobs run on it, or the user declines."""
    if not force and (stranger := _of_others(cluster, search.found)):
        raise stranger
    with screen.status("asking whether jobs run"):
        jobs = list_cluster_jobs(cluster.stack, cluster.target, cluster.deployment) if _any(search) else ClusterJobs()
    if not force and (busy := jobs.refusal(cluster.stack.name)):
        raise busy
    if not yes and not _confirmed(cluster, search.found):
        raise Stop("nothing was removed", code=FAILED)
    return jobs


def _check_complete(stack: StackHome, receipt: Receipt) -> None:
    if receipt.left:
        raise Stop(
            f"{len(receipt.left)} resources are left, see above",
            f"look at {stack.log('destroy')}, then `{typed('teardown', stack.name)}` again",
        )
    if receipt.unseen:
        raise Stop(
            "what was found is removed, but not everything could be searched, see above",
            f"credentials that may list it, then `{typed('teardown', stack.name)}` again",
        )


def _any(search: Leftovers) -> bool:
    return bool(search.found or search.unseen)


def _of_others(cluster: _Cluster, leftovers: list[Leftover]) -> Stop | None:
    """Return why the resources may be somebody else's.

    An account is shared, and so are the names in the examples: what this home has no trace of having created may
    belong to somebody else. On this machine labels say whose it is.
    """
    stack, deployment = cluster.stack, cluster.deployment
    created_here = any(path.exists() for path in (stack.state, stack.last_up, stack.inventory))
    if isinstance(cluster.target, OnThisMachine) or created_here or not leftovers:
        return None
    what = f"{len(leftovers)} resources in {deployment.region} carry the names of stack {stack.name} and cluster "
    return Stop(
        f"{what}{cluster.name}, but nothing in {stack.home.root} says that they were created from here; nothing was "
        "removed",
        f"look whose they are; if they are yours: `{typed('teardown', stack.name, 'FORCE=1')}`",
    )


def _remove(cluster: _Cluster, before: list[Leftover], held: int) -> Receipt:
    """Destroy and sweep. The state of what is kept is kept with it: the next `up` goes on with that storage."""
    began, stack = time.monotonic(), cluster.stack
    notes = [*_destroy(stack, held), *_sweep(cluster)]
    after = cluster.leftovers()
    if not _any(after):
        pulumi.forget(stack)
        shutil.rmtree(stack.folder, ignore_errors=True)
    return Receipt(
        stack=stack.name,
        cluster=cluster.name,
        at=datetime.now(UTC).isoformat(timespec="seconds"),
        seconds=round(time.monotonic() - began, 1),
        items=receipts.settle(map(_item, before), map(_item, after.found)),
        notes=(*notes, *_price_notes(cluster.deployment, after)),
        unseen=after.unseen,
    )


def _price_notes(deployment: Deployment, after: Leftovers) -> Iterator[str]:
    """Warn about prices of another region: the table has those of machines everywhere, all others of one region."""
    table = service_price("nat-gateway").region
    others = any(leftover.usd_per_hour and leftover.kind != "instance" for leftover in after.found)
    if deployment.region not in ("", table) and others:
        yield f"prices are those of {table}; {deployment.region} may cost up to a third more"


def _sweep(cluster: _Cluster) -> Iterator[str]:
    """Remove what Pulumi left or did not know; yield what cannot be removed, as sentences."""
    with screen.status("looking for what is left") as line:
        until = time.monotonic() + _SWEEP_TIMEOUT_S
        for leftover in cluster.leftovers().found:
            if leftover.kept:
                continue
            line.update(f"removing {leftover.kind} {leftover.name}")
            try:
                cluster.target.remove(leftover, until)
            except Problem as problem:
                yield str(problem)


def with_caches(receipt: Receipt, host: OnThisMachine, home: Home) -> Receipt:
    """Add the caches to a receipt, or a note where the engine does not say how large they are."""
    try:
        return replace(receipt, kept=host.caches(home))
    except Exception as failure:
        stop = explain_failure(failure)
        if stop is None:
            raise
        return replace(receipt, notes=(*receipt.notes, f"caches could not be listed: {stop.what}"))


def _destroy(stack: StackHome, held: int) -> list[str]:
    """Let Pulumi destroy the stack; what it could not do is done by label afterwards, and noted."""
    if not stack.state.exists():
        return ["no Pulumi state: removed by label"]
    with screen.status("removing the cluster"):
        code, result = pulumi.destroy(stack, pulumi.Caller(held, lambda: None, screen.say))
    return [f"Pulumi: {failure.message}" for failure in result.failures] if code else []


def _item(leftover: Leftover) -> Item:
    return Item(leftover.kind, leftover.name, leftover.created, usd_per_hour=leftover.usd_per_hour, kept=leftover.kept)


def _confirmed(cluster: _Cluster, leftovers: list[Leftover]) -> bool:
    if not screen.out().is_terminal:
        raise Stop("teardown asks before it removes, and nobody is there to answer", "add --yes")
    nodes = sum(leftover.kind in ("container", "instance") for leftover in leftovers)
    staying = [f"{leftover.kind} {leftover.name}" for leftover in leftovers if leftover.kept]
    stays = f" ({', '.join(staying)} {'stays' if len(staying) == 1 else 'stay'})" if staying else ""
    question = (
        f"remove stack {cluster.stack.name}: cluster {cluster.name}, {nodes} nodes and all data on them{stays}? [y/N] "
    )
    return screen.out().input(question).strip().lower() in ("y", "yes")


def _storage_removal(target: Target) -> str:
    return target.storage_removal if isinstance(target, ManagedStorage) else ""
