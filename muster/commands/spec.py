"""The spec of a stack, checked against this machine: every problem in one block before anything is started."""

from __future__ import annotations

from collections.abc import Sequence

from cluster.spec import ClusterSpec, Issue
from cluster.spec.issue import SpecError, render
from cluster.spec.stack_file import cluster_of
from infra.engine.stop import BAD_INPUT, Stop
from infra.home import StackHome
from infra.targets.registry import load_spec, target_of, targets
from infra.targets.target import Budgeted, HostFacts, OnThisMachine
from infra.validate import validate
from infra.validate.rest import rest
from muster.commands import screen


def host_target(stack: StackHome) -> OnThisMachine | None:
    """Return the stack's target where its nodes share this machine; None elsewhere, or where the file is unreadable."""
    try:
        data = cluster_of(stack.file)
    except SpecError:
        return None
    target = targets().get(data.get("target", "")) if isinstance(data, dict) else None
    return target if isinstance(target, OnThisMachine) else None


def check_name_free(spec: ClusterSpec, stack: str) -> None:
    """Refuse a cluster name that a resource of another owner has on this machine."""
    target = target_of(spec)
    if isinstance(target, OnThisMachine):
        target.check_name_free(spec, stack)


def usable(stack: StackHome, spec: ClusterSpec | None, issues: Sequence[Issue]) -> ClusterSpec:
    """Return the spec if it has no errors, and print its warnings."""
    if spec is None or any(issue.level == "error" for issue in issues):
        raise Stop(f"{stack.file.name} cannot be used; nothing was started\n{render(issues)}", code=BAD_INPUT)
    for issue in issues:
        screen.say(f"warning: {issue.where}: {issue.message}; {issue.fix}")
    return spec


def examined(stack: StackHome, host: HostFacts | None) -> tuple[ClusterSpec | None, list[Issue]]:
    """Return every issue, and the spec, unless it has errors that remain whatever prices are today."""
    try:
        data = cluster_of(stack.file)
    except SpecError as bad:
        return None, bad.issues
    try:
        spec = load_spec(data)
    except SpecError as bad:
        return None, [*bad.issues, *rest(data, bad.issues, host, stack.home.repo)]
    issues = validate(spec, host, stack.home.repo)
    by_price = price_issues(spec)
    invalid = any(issue.level == "error" and issue.code not in by_price for issue in issues)
    return (None if invalid else spec), issues


def price_issues(spec: ClusterSpec) -> frozenset[str]:
    """Return the codes of issues that depend on prices."""
    target = target_of(spec)
    return target.price_issues if isinstance(target, Budgeted) else frozenset()
