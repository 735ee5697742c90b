"""The spec of a stack, checked against this machine: every problem in one block before anything is started."""

from __future__ import annotations

from collections.abc import Sequence

from cluster import names
from cluster.spec import ClusterSpec, Issue
from cluster.spec.issue import SpecError, render
from cluster.spec.stack_file import cluster_of
from infra.engine.stop import BAD_INPUT, Stop
from infra.home import StackHome
from infra.plan import BuildPlan
from infra.targets.registry import load_spec, target_of, targets
from infra.targets.target import Budgeted, HostFacts, OnThisMachine
from infra.validate import validate
from infra.validate.partial import validate_readable
from muster.commands import screen


def find_host_target(stack: StackHome) -> OnThisMachine | None:
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


def require_valid_spec(stack: StackHome, spec: ClusterSpec | None, issues: Sequence[Issue]) -> ClusterSpec:
    """Return the spec if it has no errors, and print its warnings."""
    if spec is None or any(issue.level == "error" for issue in issues):
        raise Stop(f"{stack.file.name} cannot be used; nothing was started\n{render(issues)}", code=BAD_INPUT)
    for issue in issues:
        screen.say(f"warning: {issue.where}: {issue.message}; {issue.fix}")
    return spec


def examine_spec(stack: StackHome, host: HostFacts | None) -> tuple[ClusterSpec | None, list[Issue]]:
    """Return every issue, and the spec, unless it has errors that remain whatever prices are today."""
    try:
        data = cluster_of(stack.file)
    except SpecError as bad:
        return None, bad.issues
    try:
        spec = load_spec(data)
    except SpecError as bad:
        return None, [*bad.issues, *validate_readable(data, bad.issues, host, stack.home.repo)]
    issues = validate(spec, host, stack.home.repo)
    by_price = list_price_issues(spec)
    invalid = any(issue.level == "error" and issue.code not in by_price for issue in issues)
    return (None if invalid else spec), issues


def list_price_issues(spec: ClusterSpec) -> frozenset[str]:
    """Return the codes of issues that depend on prices."""
    target = target_of(spec)
    return target.price_issues if isinstance(target, Budgeted) else frozenset()


def list_permanent_nodes(built: BuildPlan) -> list[str]:
    """Nodes that `up` makes or waits for."""
    launched = (names.member(part.group, number) for part in built.sets for number in range(1, part.static + 1))
    return [*(node.name for node in built.nodes), *launched]


def describe_machines(built: BuildPlan) -> str:
    if not built.sets:
        return _nodes(len(built.nodes))
    static = sum(part.static for part in built.sets)
    more = sum(part.count - part.static for part in built.sets)
    words = [node.name for node in built.nodes]
    if static:
        words.append(_nodes(static, "static "))
    if more:
        words.append(f"up to {_nodes(more, 'autoscaled ')}")
    return ", ".join(words)


def _nodes(count: int, kind: str = "") -> str:
    return f"{count} {kind}{'node' if count == 1 else 'nodes'}"
