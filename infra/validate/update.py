"""What a changed spec means for a running cluster, from the policy that every field of the model carries.

safe: applied while jobs run. drain: more is safe, fewer empties the nodes that go. replace: the nodes it concerns are
emptied and made anew. forbidden: only a new cluster can have it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from cluster import names
from cluster.spec import ClusterSpec, Issue
from cluster.spec.fields import item_of, part_of, policy_of
from cluster.spec.issue import error
from cluster.spec.model import Policy, SpecModel
from cluster.spec.written import shown
from infra.targets.registry import plan_of, target_of


class Running(Protocol):
    """The jobs that run on the cluster, by id."""

    def jobs(self, nodes: Sequence[str]) -> dict[str, list[str]]:
        """Which of the nodes run jobs, and which ones."""
        ...

    def jobs_of(self, users: Sequence[str]) -> dict[str, list[str]]:
        """Whose jobs run, of these users, and which ones."""
        ...


@dataclass(frozen=True)
class Change:
    path: str
    old: Any
    new: Any
    policy: Policy


def changes(old: ClusterSpec, new: ClusterSpec) -> list[Change]:
    """Every field that differs; writing a default out is no difference."""
    return list(_in_part("", target_of(old).resolve(old), target_of(new).resolve(new)))


def affected(old: ClusterSpec, new: ClusterSpec) -> tuple[str, ...]:
    """Nodes of the old cluster that will go or be replaced, in the order of its plan."""
    existing = [node.name for node in plan_of(old).members]
    staying = {node.name for node in plan_of(new).members}
    replaced = {name for c in changes(old, new) if c.policy == "replace" for name in _concerned(c.path, old)}
    replaced -= target_of(new).stable_nodes
    return tuple(name for name in existing if name not in staying or name in replaced)


def violations(old: ClusterSpec, new: ClusterSpec, running: Running, *, force: bool = False) -> list[Issue]:
    """Why the change may not be made now; `force` overrides everything but what is forbidden."""
    forbidden = [_forbidden(change) for change in changes(old, new) if change.policy == "forbidden"]
    forbidden += target_of(new).change_issues(old, new)
    if force:
        return forbidden
    return [*forbidden, *_users_in_the_way(old, new, running), *_nodes_in_the_way(old, new, running)]


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
    """Growth never needs a drain: a group that was not there, a higher count, a login node switched on."""
    grows = old is None or (isinstance(old, int) and isinstance(new, int) and new > old)
    return "safe" if policy == "drain" and grows else policy


def _concerned(path: str, spec: ClusterSpec) -> Iterator[str]:
    """The nodes a field speaks about: those of its group, its one machine, or all."""
    concerned = target_of(spec).nodes_concerned(path, spec)
    if concerned is not None:
        yield from concerned
        return
    top, _, rest = path.partition(".")
    group = rest.partition(".")[0]
    everyone = top not in ("groups", names.CONTROLLER, names.LOGIN)
    for node in plan_of(spec).members:
        if everyone or top == node.role or (top == "groups" and node.group == group):
            yield node.name


def _forbidden(change: Change) -> Issue:
    message = f"cannot change from {_said(change.old)} to {_said(change.new)} while the cluster exists"
    back = "remove it" if change.old is None else f"write {_said(change.old)} again"
    return error("forbidden_change", change.path, message, f"{back}, or `make teardown` and then `make up`")


def _users_in_the_way(old: ClusterSpec, new: ClusterSpec, running: Running) -> Iterator[Issue]:
    gone = [user for user in old.users if user not in new.users]
    if not gone:
        return
    if old.users == ClusterSpec.model_fields["users"].default:
        yield from (_default_user_dropped(user, old.users[user].uid) for user in gone)
    for user, ids in running.jobs_of(gone).items():
        what, them = _counted(ids)
        message = f"user {user} would be removed but runs {what} {', '.join(ids)}"
        fix = f"{_patience(ids)}, or end {them} with `make up FORCE=1`"
        yield error("user_busy", f"users.{user}", message, fix)


def _default_user_dropped(user: str, uid: int) -> Issue:
    """Nobody wrote this user, so nobody who writes another one means to remove it."""
    message = f"writing users replaces the default user '{user}', who exists on this cluster"
    fix = f"add `{user}: {{uid: {uid}}}` to keep it, or remove it with `make up FORCE=1`"
    return error("default_user_dropped", "users", message, fix)


def _nodes_in_the_way(old: ClusterSpec, new: ClusterSpec, running: Running) -> Iterator[Issue]:
    going = affected(old, new)
    if not going:
        return
    if names.CONTROLLER not in going:
        yield from _busy(running.jobs(going), old, new)
        return
    yield _controller_replaced()
    yield from _busy(running.jobs([node.name for node in plan_of(old).members]), old, new)


def _controller_replaced() -> Issue:
    message = "the controller would be replaced: the job queue and the accounting history are lost"
    fix = "undo the change, or accept the loss with `make up FORCE=1`"
    return error("controller_replaced", "controller", message, fix)


def _busy(jobs: dict[str, list[str]], old: ClusterSpec, new: ClusterSpec) -> Iterator[Issue]:
    groups = {node.name: node.group for node in plan_of(old).members}
    staying = {node.name for node in plan_of(new).members}
    going = affected(old, new)
    for node, ids in jobs.items():
        fate = "lose its controller" if node not in going else "be replaced" if node in staying else "be removed"
        what, them = _counted(ids)
        message = f"node {node} would {fate} but runs {what} {', '.join(ids)}"
        # Without its controller there is no queue to give them back to.
        forced = f"lose {them}" if names.CONTROLLER in going else f"give the {what} back to the queue"
        yield error(
            "node_busy", f"groups.{groups[node]}", message, f"{_patience(ids)}, or {forced} with `make up FORCE=1`"
        )


def _patience(ids: Sequence[str]) -> str:
    _, them = _counted(ids)
    return f"wait for {them}, cancel {them} with `scancel {' '.join(ids)}`"


def _counted(ids: Sequence[str]) -> tuple[str, str]:
    return ("job", "it") if len(ids) == 1 else ("jobs", "them")


def _said(value: Any) -> str:
    if value is None:
        return "unset"
    return "a mapping" if isinstance(value, SpecModel) else shown(value)
