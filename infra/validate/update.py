"""What a changed spec means for a running cluster, from the policy that every field of the model carries.

safe: applied while jobs run. drain: more is safe, fewer empties the nodes that go. replace: the nodes it concerns are
emptied and made anew. forbidden: only a new cluster can have it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from infra.plan import names
from infra.plan.build_plan import plan, resolved
from infra.spec import ClusterSpec, Issue
from infra.spec.fields import item_of, part_of, policy_of
from infra.spec.model import Part, Policy
from infra.spec.written import shown
from infra.validate.issue import error

Busy = Callable[[Sequence[str]], dict[str, list[str]]]
"""Which of these nodes run jobs, and the ids of those jobs."""


@dataclass(frozen=True)
class Change:
    path: str
    old: Any
    new: Any
    policy: Policy


def changes(old: ClusterSpec, new: ClusterSpec) -> list[Change]:
    """Every field that differs; writing a default out is no difference."""
    return list(_in_part("", resolved(old), resolved(new)))


def affected(old: ClusterSpec, new: ClusterSpec) -> tuple[str, ...]:
    """Nodes of the old cluster that will go or be replaced, in the order of its plan."""
    existing = [node.name for node in plan(old).nodes]
    staying = {node.name for node in plan(new).nodes}
    replaced = {name for c in changes(old, new) if c.policy == "replace" for name in _concerned(c.path, old)}
    return tuple(name for name in existing if name not in staying or name in replaced)


def violations(old: ClusterSpec, new: ClusterSpec, busy: Busy, *, force: bool = False) -> list[Issue]:
    """Why the change may not be made now; `force` overrides everything but what is forbidden."""
    forbidden = [_forbidden(change) for change in changes(old, new) if change.policy == "forbidden"]
    going = affected(old, new)
    if force or not going:
        return forbidden
    if names.CONTROLLER not in going:
        return [*forbidden, *_busy(busy(going), old, new)]
    everyone = [node.name for node in plan(old).nodes]
    return [*forbidden, _controller_replaced(), *_busy(busy(everyone), old, new)]


def _in_part(prefix: str, old: Part, new: Part) -> Iterator[Change]:
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
        if isinstance(before, Part) and isinstance(after, Part):
            yield from _in_part(f"{path}.{key}.", before, after)
        elif before != after:
            yield Change(f"{path}.{key}", before, after, _directed(policy, before, after))


def _directed(policy: Policy, old: Any, new: Any) -> Policy:
    """Growth never needs a drain: a group that was not there, a higher count, a login node switched on."""
    grows = old is None or (isinstance(old, int) and isinstance(new, int) and new > old)
    return "safe" if policy == "drain" and grows else policy


def _concerned(path: str, spec: ClusterSpec) -> Iterator[str]:
    """The nodes a field speaks about: those of its group, its one machine, or all."""
    top, _, rest = path.partition(".")
    group = rest.partition(".")[0]
    everyone = top not in ("groups", names.CONTROLLER, names.LOGIN)
    for node in plan(spec).nodes:
        if everyone or top == node.role or (top == "groups" and node.group == group):
            yield node.name


def _forbidden(change: Change) -> Issue:
    message = f"cannot change from {_said(change.old)} to {_said(change.new)} while the cluster exists"
    back = "remove it" if change.old is None else f"write {_said(change.old)} again"
    return error("forbidden_change", change.path, message, f"{back}, or `make teardown` and then `make up`")


def _controller_replaced() -> Issue:
    message = "the controller would be replaced: the job queue and the accounting history are lost"
    return error("controller_replaced", "controller", message, "undo the change, or accept the loss with `FORCE=1`")


def _busy(jobs: dict[str, list[str]], old: ClusterSpec, new: ClusterSpec) -> Iterator[Issue]:
    groups = {node.name: node.group for node in plan(old).nodes}
    staying = {node.name for node in plan(new).nodes}
    going = affected(old, new)
    for node, ids in jobs.items():
        if not ids:
            continue
        fate = "lose its controller" if node not in going else "be replaced" if node in staying else "be removed"
        what, them = ("job", "it") if len(ids) == 1 else ("jobs", "them")
        message = f"node {node} would {fate} but runs {what} {', '.join(ids)}"
        fix = f"wait for {them}, cancel {them} with `scancel {' '.join(ids)}`, or end {them} with `FORCE=1`"
        yield error("node_busy", f"groups.{groups[node]}", message, fix)


def _said(value: Any) -> str:
    if value is None:
        return "unset"
    return "a mapping" if isinstance(value, Part) else shown(value)
