"""The effect of a changed spec on a running cluster, by the policy of each changed field.

safe: applied while jobs are running. drain: adding nodes is safe, removing nodes drains them first. replace: the nodes
that the field describes are drained and created again. upgrade: only `muster upgrade` changes the value. forbidden:
only a new cluster can have another value.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, get_args

from cluster import names
from cluster.spec import ClusterSpec, Issue
from cluster.spec.base import Policy, SpecModel
from cluster.spec.fields import item_of, part_of, policy_of
from cluster.spec.issue import error
from cluster.spec.model import SlurmRelease
from cluster.spec.written import shown
from infra.targets.mixins import ManagedStorage, Upgrades
from infra.targets.registry import plan_of, target_of
from infra.targets.target import Target


class Running(Protocol):
    """The running jobs of a cluster, by id."""

    def jobs(self, nodes: Sequence[str]) -> dict[str, list[str]]:
        """Return the ids of the jobs on these nodes, by node."""
        ...

    def jobs_of(self, users: Sequence[str]) -> dict[str, list[str]]:
        """Return the ids of the running jobs of these users, by user."""
        ...

    def release(self) -> str:
        """Return the release of Slurm that runs, such as 24.11; empty if none does."""
        ...


@dataclass(frozen=True)
class Change:
    """A field whose value differs between two specs."""

    path: str
    old: Any
    new: Any
    policy: Policy


def changes(old: ClusterSpec, new: ClusterSpec) -> list[Change]:
    """Return every field that differs; a default that is written out does not."""
    return list(_in_part("", target_of(old).resolve(old), target_of(new).resolve(new)))


def affected(old: ClusterSpec, new: ClusterSpec) -> tuple[str, ...]:
    """Return the nodes of the old cluster that will be removed or replaced, in the order of its plan."""
    existing = [node.name for node in plan_of(old).members]
    staying = {node.name for node in plan_of(new).members}
    replaced = {name for c in changes(old, new) if c.policy == "replace" for name in _concerned(c.path, old)}
    replaced -= target_of(new).stable_nodes
    return tuple(name for name in existing if name not in staying or name in replaced)


def violations(old: ClusterSpec, new: ClusterSpec, running: Running, *, force: bool = False) -> list[Issue]:
    """Return why the change is not possible now; with `force`, only the changes that are always forbidden."""
    changed, target = changes(old, new), target_of(new)
    forbidden = [_forbidden(change) for change in changed if change.policy == "forbidden"]
    forbidden += [i for change in changed if change.policy == "upgrade" for i in _upgrade(change, running, target)]
    forbidden += target.change_issues(old, new)
    if force:
        return forbidden
    return [*forbidden, *_user_issues(old, new, running), *_node_issues(old, new, running)]


def _in_part(prefix: str, old: SpecModel, new: SpecModel) -> Iterator[Change]:
    for name, info in type(old).model_fields.items():
        before, after = getattr(old, name), getattr(new, name)
        if before == after:
            continue
        path, policy = f"{prefix}{name}", policy_of(info)
        if part_of(info.annotation) and before is not None and after is not None:
            yield from _in_part(f"{path}.", before, after)
        elif item_of(info.annotation):
            yield from _in_mapping(path, before, after, policy)
        else:
            yield Change(path, before, after, _directed(policy, before, after))


def _in_mapping(path: str, old: dict[str, Any], new: dict[str, Any], policy: Policy) -> Iterator[Change]:
    for key in [*old, *(key for key in new if key not in old)]:
        before, after = old.get(key), new.get(key)
        if isinstance(before, SpecModel) and isinstance(after, SpecModel):
            yield from _in_part(f"{path}.{key}.", before, after)
        elif before != after:
            yield Change(f"{path}.{key}", before, after, _directed(policy, before, after))


def _directed(policy: Policy, old: Any, new: Any) -> Policy:
    """Return the policy, but `safe` instead of `drain` for growth: a new group, a higher count, an added login node."""
    grows = old is None or (isinstance(old, int) and isinstance(new, int) and new > old)
    return "safe" if policy == "drain" and grows else policy


def _concerned(path: str, spec: ClusterSpec) -> Iterator[str]:
    """Yield the nodes that a field describes: those of its group, its single machine, or all."""
    concerned = target_of(spec).nodes_concerned(path, spec)
    if concerned is not None:
        yield from concerned
        return
    top, _, below = path.partition(".")
    group = below.partition(".")[0]
    everyone = top not in ("groups", names.CONTROLLER, names.LOGIN)
    for node in plan_of(spec).members:
        if everyone or top == node.role or (top == "groups" and node.group == group):
            yield node.name


def _forbidden(change: Change) -> Issue:
    message = f"cannot change from {_show(change.old)} to {_show(change.new)} while the cluster exists"
    back = "remove it" if change.old is None else f"write {_show(change.old)} again"
    return error("forbidden_change", change.path, message, f"{back}, or `make teardown` and then `make up`")


def _upgrade(change: Change, running: Running, target: Target) -> Iterator[Issue]:
    """Yield the issue for another release of Slurm, unless `muster upgrade` has already installed it."""
    if running.release() == change.new:
        return
    message = f"`up` cannot change the release from {_show(change.old)} to {_show(change.new)}"
    releases = get_args(SlurmRelease)
    # The file of a cluster from before a change of the default has never had the release.
    keep = f"write `software: {{slurm: {_show(change.old)}}}`"
    if releases.index(change.new) < releases.index(change.old):
        fix = f"{keep}: Slurm cannot go back to an older release"
    elif not isinstance(target, Upgrades):
        fix = f"{keep}: target {target.name} cannot upgrade running nodes. A new cluster can have {change.new}"
    else:
        fix = f"run `make upgrade TO={change.new}`, or {keep} to keep the present release"
    yield error("slurm_release", change.path, message, fix)


def _user_issues(old: ClusterSpec, new: ClusterSpec, running: Running) -> Iterator[Issue]:
    gone = [user for user in old.users if user not in new.users]
    if not gone:
        return
    if old.users == ClusterSpec.model_fields["users"].default:
        yield from (_default_user_dropped(user, old.users[user].uid) for user in gone)
    for user, ids in running.jobs_of(gone).items():
        what, them = _job_nouns(ids)
        message = f"user {user} would be removed but is running {what} {', '.join(ids)}"
        fix = f"{_waiting_fix(ids)}, or end {them} with `make up FORCE=1`"
        yield error("user_busy", f"users.{user}", message, fix)


def _default_user_dropped(user: str, uid: int) -> Issue:
    """Return the issue for adding a first user: that removes the default user, whom the stack file never mentioned."""
    message = f"writing users replaces the default user '{user}', who exists on this cluster"
    fix = f"add `{user}: {{uid: {uid}}}` to keep it, or remove it with `make up FORCE=1`"
    return error("default_user_dropped", "users", message, fix)


def _node_issues(old: ClusterSpec, new: ClusterSpec, running: Running) -> Iterator[Issue]:
    going = affected(old, new)
    if not going:
        return
    if names.CONTROLLER not in going:
        yield from _busy(running.jobs(going), old, new)
        return
    yield _controller_replaced(old)
    yield from _busy(running.jobs([node.name for node in plan_of(old).members]), old, new)


def _controller_replaced(old: ClusterSpec) -> Issue:
    # Own machines keep the folders that they serve.
    served = isinstance(target_of(old), ManagedStorage)
    files = [f"the files of storage '{name}'" for name, each in old.storage.items() if served and each.kind == "nfs"]
    *others, last = ["the job queue", "the accounting history", *files]
    message = f"the controller would be replaced: {', '.join(others)} and {last} are lost"
    fix = "undo the change, or accept the loss with `make up FORCE=1`"
    return error("controller_replaced", "controller", message, fix)


def _busy(jobs: dict[str, list[str]], old: ClusterSpec, new: ClusterSpec) -> Iterator[Issue]:
    groups = {node.name: node.group for node in plan_of(old).members}
    staying = {node.name for node in plan_of(new).members}
    going = affected(old, new)
    for node, ids in jobs.items():
        fate = "lose its controller" if node not in going else "be replaced" if node in staying else "be removed"
        what, them = _job_nouns(ids)
        message = f"node {node} would {fate} but is running {what} {', '.join(ids)}"
        # Without the controller there is no queue to which the jobs could return.
        forced = f"lose {them}" if names.CONTROLLER in going else f"requeue the {what}"
        yield error(
            "node_busy", f"groups.{groups[node]}", message, f"{_waiting_fix(ids)}, or {forced} with `make up FORCE=1`"
        )


def _waiting_fix(ids: Sequence[str]) -> str:
    _, them = _job_nouns(ids)
    return f"wait for {them}, cancel {them} with `scancel {' '.join(ids)}`"


def _job_nouns(ids: Sequence[str]) -> tuple[str, str]:
    return ("job", "it") if len(ids) == 1 else ("jobs", "them")


def _show(value: Any) -> str:
    if value is None:
        return "unset"
    return "a mapping" if isinstance(value, SpecModel) else shown(value)
