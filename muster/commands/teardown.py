"""`muster teardown`: destroy the stack, remove what is left by label, and print a receipt."""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from cluster.plural import format_count
from infra import receipt as receipts
from infra.engine import lock, pulumi
from infra.engine.command_line import format_command
from infra.engine.stop import FAILED, INTERRUPTED, Stop
from infra.home import Home, StackHome
from infra.receipt import Item, Receipt
from infra.resources.error import InUseError, ResourceError
from infra.targets.mixins import Images, ManagedStorage, OnThisMachine
from infra.targets.target import Deployment, Leftover, Leftovers, Target
from muster.commands import receipt_table, screen
from muster.commands.failure import explain_failure
from muster.commands.progress_board import EventTail
from muster.commands.stacks import has_traces, missing_stack_error, resolve_stack
from muster.commands.teardown_jobs import ClusterJobs, describe_job_ids, find_next_job_id, list_cluster_jobs
from muster.deployments import find_own_leftovers, search_deployment

# Machines take minutes to terminate and filesystems 15 minutes; their dependencies can be removed only afterwards.
_SWEEP_TIMEOUT_S = 1200.0
_ROUND_S = 60.0
_PAUSE_S = 5.0


@dataclass(frozen=True)
class _Cluster:
    """The cluster to remove."""

    stack: StackHome
    target: Target
    deployment: Deployment
    delete_storage: bool = False
    """Whether kept storage is removed, too."""

    @property
    def name(self) -> str:
        return self.deployment.cluster

    def leftovers(self) -> Leftovers:
        search = find_own_leftovers(self.target, self.deployment)
        if not self.delete_storage:
            return search
        return replace(search, resources=[replace(leftover, keep_reason="") for leftover in search.resources])


def teardown(name: str, *, yes: bool, force: bool, delete_storage: bool = False) -> Receipt | None:
    """Remove the cluster of a stack and return the receipt; None if nothing exists.

    Storage with `keep: true` stays, unless `delete_storage`.
    """
    stack = resolve_stack(name)
    with lock.held(stack, "teardown", wait=False, say=screen.say) as held:
        pulumi.wait_for_others(stack, wait=False, say=screen.say)
        cluster = _find(stack)
        if cluster is None:
            return None
        if delete_storage:
            cluster = _with_storage(cluster)
        search = cluster.leftovers()
        if not search.resources and not search.unseen and not stack.state.exists():
            _forget_folder(stack, f"nothing of stack {name} (cluster {cluster.name}) exists")
            return None
        jobs = _check_allowed(cluster, search, yes=yes, force=force)
        job_ids = _describe_job_ids(cluster, search.resources, jobs)
        try:
            receipt = _remove(cluster, search.resources, held)
        except KeyboardInterrupt:
            raise Stop(
                "teardown was interrupted", f"`{format_command('teardown', name)}` continues", INTERRUPTED
            ) from None
        receipt = replace(receipt, notes=(*jobs.notes, *receipt.notes, *(job_ids if receipt.retained else ())))
        path = receipts.save(receipt, stack.home.receipts)
    if isinstance(cluster.target, OnThisMachine):
        receipt = with_caches(receipt, cluster.target, stack.home)
    receipts.save(receipt, stack.home.receipts)
    receipt_table.print_receipt(receipt, _storage_removal(cluster))
    screen.say(f"receipt: {path}")
    _check_complete(stack, receipt)
    return receipt


def _find(stack: StackHome) -> _Cluster | None:
    """Return the cluster of a stack; if only files of the stack are left, remove them and return None."""
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


def _with_storage(cluster: _Cluster) -> _Cluster:
    """Return the cluster with the storage that would be kept; raise Stop if the target does not delete that."""
    if isinstance(cluster.target, ManagedStorage) and not cluster.target.storage_removal:
        return replace(cluster, delete_storage=True)
    by_hand = cluster.target.storage_removal if isinstance(cluster.target, ManagedStorage) else ""
    raise Stop(
        f"--delete-storage: target {cluster.target.name} does not delete storage that it keeps; nothing was removed",
        by_hand or f"`{format_command('teardown', cluster.stack.name)}` without it",
    )


def _forget_folder(stack: StackHome, why: str) -> None:
    shutil.rmtree(stack.folder, ignore_errors=True)
    screen.print_success(f"nothing to remove: {why}")


def _check_allowed(cluster: _Cluster, search: Leftovers, *, yes: bool, force: bool) -> ClusterJobs:
    """Raise Stop if the cluster may belong to someone else, jobs are running on it, or the user declines."""
    if not force and (stranger := _foreign_error(cluster, search.resources)):
        raise stranger
    with screen.status("checking for running jobs"):
        jobs = list_cluster_jobs(cluster.stack, cluster.target, cluster.deployment) if _any(search) else ClusterJobs()
    if not force and (busy := jobs.refusal(cluster.stack.name)):
        raise busy
    if not yes and not _confirmed(cluster, search.resources):
        raise Stop("nothing was removed", code=FAILED)
    return jobs


def _describe_job_ids(cluster: _Cluster, leftovers: list[Leftover], jobs: ClusterJobs) -> tuple[str, ...]:
    """Return the note about the job ids of the next cluster if it will have the files of this one's jobs."""
    is_kept, has_nodes = any(left.keep_reason for left in leftovers), any(left.is_node for left in leftovers)
    if not (is_kept and has_nodes):
        return ()
    # A queue that has not answered is not asked again: that takes long.
    return describe_job_ids(None if jobs.unknown else find_next_job_id(cluster.target, cluster.deployment))


def _check_complete(stack: StackHome, receipt: Receipt) -> None:
    if receipt.left:
        raise Stop(
            f"{format_count(len(receipt.left), 'resource')} could not be removed, see above",
            f"see {stack.log('destroy')}, then `{format_command('teardown', stack.name)}` again",
        )
    if receipt.unseen:
        # If nothing was removed either, probably nothing at all could be searched.
        others = "; everything else is removed" if receipt.removed else ""
        raise Stop(
            f"not everything could be searched, see above{others}",
            f"use credentials that may list it, then `{format_command('teardown', stack.name)}` again",
        )


def _any(search: Leftovers) -> bool:
    return bool(search.resources or search.unseen)


def _foreign_error(cluster: _Cluster, leftovers: list[Leftover]) -> Stop | None:
    """Return an error if the resources may belong to someone else.

    Accounts are shared, and clusters may use the names of the examples: resources that were not created from this
    home may belong to someone else. On this machine labels name the owner.
    """
    stack, deployment = cluster.stack, cluster.deployment
    created_here = any(path.exists() for path in (stack.state, stack.last_up, stack.inventory))
    if isinstance(cluster.target, OnThisMachine) or created_here or not leftovers:
        return None
    where = deployment.region or f"target {cluster.target.name}"
    count = format_count(len(leftovers), "resource")
    what = f"{where} has {count} with the names of stack {stack.name} and cluster {cluster.name}"
    return Stop(
        f"{what}, but {stack.home.root} has no record that they were created from here; nothing was removed",
        f"check who owns them; if they are yours: `{format_command('teardown', stack.name, 'FORCE=1')}`",
    )


def _remove(cluster: _Cluster, before: list[Leftover], held: int) -> Receipt:
    """Destroy the stack and remove leftovers; keep the state if storage is kept, because the next `up` uses it."""
    began, stack = time.monotonic(), cluster.stack
    failures = _destroy(stack, held)
    errors, swept = _sweep(cluster)
    after = cluster.leftovers()
    if not failures and isinstance(cluster.target, Images):
        cluster.target.forget_choices(stack)
    if not _any(after):
        pulumi.forget(stack)
        shutil.rmtree(stack.folder, ignore_errors=True)
    return Receipt(
        stack=stack.name,
        cluster=cluster.name,
        at=datetime.now(UTC).isoformat(timespec="seconds"),
        seconds=round(time.monotonic() - began, 1),
        items=receipts.mark_removed(
            map(_item, (*before, *swept)), [_measured_item(cluster.target, leftover) for leftover in after.resources]
        ),
        notes=(
            *failures,
            *errors,
            *cluster.target.removal_notes((*before, *swept)),
            *cluster.target.price_notes(after.resources),
        ),
        unseen=after.unseen,
    )


def _sweep(cluster: _Cluster) -> tuple[list[str], list[Leftover]]:
    """Remove what Pulumi left behind or did not know; return the errors, and everything that was found.

    What is in use is waited for in rounds, and everything is listed again after each: a machine that has just been
    launched may not be listed yet, although its disk is.
    """
    until = time.monotonic() + _SWEEP_TIMEOUT_S
    leftovers: dict[tuple[str, str], Leftover] = {}
    before, swept = set[tuple[str, str]](), _Round()
    with screen.status("searching for leftovers") as line:
        search = cluster.leftovers()
        while True:
            removable = {(entry.kind, entry.name): entry for entry in search.resources if not entry.keep_reason}
            leftovers |= removable
            is_over = time.monotonic() >= until or (set(removable) == before and not swept.is_waiting)
            if not removable or (before and is_over):
                return swept.errors if removable else [], list(leftovers.values())
            before, swept = set(removable), _Round(set(search.unseen_kinds))
            round_until = min(until, time.monotonic() + _ROUND_S)
            for leftover in removable.values():
                line.update(f"removing {leftover.kind} {leftover.name}")
                swept.remove(cluster.target, leftover, round_until)
            search = _list_again(cluster)


@dataclass
class _Round:
    """One attempt to remove everything that is listed."""

    staying_kinds: set[str] = field(default_factory=set)
    """Kinds of which a resource cannot be removed, or none could be listed."""
    errors: list[str] = field(default_factory=list)
    is_waiting: bool = False
    """Whether something is in use that may be free later."""

    def remove(self, target: Target, leftover: Leftover, until: float) -> None:
        try:
            target.remove(leftover, until)
        except ResourceError as problem:
            self.errors.append(str(problem))
            is_held = not leftover.used_by.isdisjoint(self.staying_kinds)
            if isinstance(problem, InUseError) and not is_held:
                self.is_waiting = True
            else:
                # What this resource uses is not worth waiting for longer: the next teardown removes both.
                self.staying_kinds.add(leftover.kind)


def _list_again(cluster: _Cluster) -> Leftovers:
    """List the leftovers; try again for a minute if that fails, because it did not when the sweep began."""
    until = time.monotonic() + _ROUND_S
    while True:
        try:
            return cluster.leftovers()
        except ResourceError:
            if time.monotonic() >= until:
                raise
            time.sleep(_PAUSE_S)


def with_caches(receipt: Receipt, host: OnThisMachine, home: Home) -> Receipt:
    """Return a receipt with the caches, or with a note if the engine cannot list them."""
    try:
        return replace(receipt, caches=host.caches(home))
    except Exception as failure:
        stop = explain_failure(failure)
        if stop is None:
            raise
        return replace(receipt, notes=(*receipt.notes, f"caches could not be listed: {stop.what}"))


def _destroy(stack: StackHome, held: int) -> list[str]:
    """Destroy the stack with Pulumi and return its errors; leftovers are removed by label afterwards."""
    if not stack.state.exists():
        return ["no Pulumi state: removed by label"]
    # Notices of the last `up` are not for who waits now.
    stack.progress.unlink(missing_ok=True)
    tail = EventTail(stack.progress)

    def show_notices() -> None:
        tail.events()
        for notice in tail.take_notices():
            screen.say(notice)

    with screen.status("removing the cluster"):
        code, result = pulumi.destroy(stack, pulumi.Caller(held, show_notices, screen.say))
    return [f"Pulumi: {failure.message}" for failure in result.failures] if code else []


def _item(leftover: Leftover) -> Item:
    return Item(
        leftover.kind,
        leftover.name,
        leftover.created,
        usd_per_hour=leftover.usd_per_hour,
        keep_reason=leftover.keep_reason,
    )


def _measured_item(target: Target, leftover: Leftover) -> Item:
    """Return the item of a resource that remains, with its size if it is storage that is kept."""
    item = _item(leftover)
    if not (leftover.keep_reason and isinstance(target, ManagedStorage)):
        return item
    return replace(item, size=target.measure(leftover))


def _confirmed(cluster: _Cluster, leftovers: list[Leftover]) -> bool:
    if not screen.out().is_terminal:
        raise Stop("teardown asks for confirmation, but there is no terminal", "add --yes")
    nodes = sum(leftover.is_node for leftover in leftovers)
    staying = [f"{leftover.kind} {leftover.name}" for leftover in leftovers if leftover.keep_reason]
    stays = f" ({', '.join(staying)} {'stays' if len(staying) == 1 else 'stay'})" if staying else ""
    question = (
        f"remove stack {cluster.stack.name}: cluster {cluster.name}, {format_count(nodes, 'node')} "
        f"{cluster.target.removal_words}{stays}? [y/N] "
    )
    return screen.out().input(question).strip().lower() in ("y", "yes")


def _storage_removal(cluster: _Cluster) -> str:
    """Return how to remove storage that was kept."""
    again = format_command("teardown", cluster.stack.name)
    by_hand = cluster.target.storage_removal if isinstance(cluster.target, ManagedStorage) else ""
    delete = format_command("teardown", cluster.stack.name, "DELETE_STORAGE=1")
    return f"{by_hand}, then `{again}`" if by_hand else f"`{delete}`"
