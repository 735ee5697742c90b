"""Load the spec of a stack, validate it against this machine, and describe the machines that it needs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from cluster import names
from cluster.plural import format_count
from cluster.spec import ClusterSpec, Issue
from cluster.spec.issue import SpecError, render
from cluster.spec.stack_file import cluster_of
from infra.engine.command_line import rewrite_commands
from infra.engine.stop import BAD_INPUT, Stop
from infra.home import StackHome
from infra.plan import BuildPlan
from infra.targets.mixins import Budgeted, HostFacts, OnThisMachine, Rehearses
from infra.targets.registry import load_spec, target_of, targets
from infra.validate import validate
from infra.validate.partial import validate_readable
from muster.commands import screen


def find_host_target(stack: StackHome) -> OnThisMachine | None:
    """Return the stack's target if its nodes run on this machine; None if not, or if the file is unreadable."""
    try:
        data = cluster_of(stack.file)
    except SpecError:
        return None
    target = targets().get(data.get("target", "")) if isinstance(data, dict) else None
    return target if isinstance(target, OnThisMachine) else None


def check_name_free(spec: ClusterSpec, stack: str) -> None:
    """Raise an error if another stack uses the cluster name on this machine."""
    target = target_of(spec)
    if isinstance(target, OnThisMachine):
        target.check_name_free(spec, stack)


def require_valid_spec(stack: StackHome, spec: ClusterSpec | None, issues: Sequence[Issue]) -> ClusterSpec:
    """Return the spec and print its warnings; raise Stop if it has errors."""
    issues = name_stack_in_issues(issues, stack.name)
    if spec is None or any(issue.level == "error" for issue in issues):
        raise Stop(f"{stack.file.name} is invalid; nothing was started\n{render(issues)}", code=BAD_INPUT)
    for issue in issues:
        screen.say(f"warning: {issue.where}: {issue.message}; {issue.fix}")
    return spec


def name_stack_in_issues(issues: Iterable[Issue], stack: str) -> list[Issue]:
    """Return the issues with the name of the stack in their commands."""
    return [
        replace(issue, message=rewrite_commands(issue.message, stack), fix=rewrite_commands(issue.fix, stack))
        for issue in issues
    ]


def examine_spec(
    stack: StackHome, host: HostFacts | None, *, rehearsed: bool = False
) -> tuple[ClusterSpec | None, list[Issue]]:
    """Return all issues of a stack file, and its spec; None instead of the spec if errors do not depend on prices.

    For a rehearsal, the simulated cloud and not the account is asked about what the catalog does not have.
    """
    try:
        data = cluster_of(stack.file)
    except SpecError as bad:
        return None, bad.issues
    try:
        spec = load_spec(data)
    except SpecError as bad:
        return None, [*bad.issues, *validate_readable(data, bad.issues, host, stack.home.repo)]
    target = target_of(spec)
    warnings: Iterable[Issue] = ()
    if not rehearsed:
        warnings = target.look_up(spec)
    elif isinstance(target, Rehearses):
        target.look_up_offline(spec)
    issues = [*warnings, *validate(spec, host, stack.home.repo)]
    by_price = list_price_issues(spec)
    invalid = any(issue.level == "error" and issue.code not in by_price for issue in issues)
    return (None if invalid else spec), issues


def list_price_issues(spec: ClusterSpec) -> frozenset[str]:
    """Return the codes of issues that depend on prices."""
    target = target_of(spec)
    return target.price_issues if isinstance(target, Budgeted) else frozenset()


def list_permanent_nodes(built: BuildPlan) -> list[str]:
    """Return the names of the nodes that exist as soon as the cluster is up, without autoscaled nodes."""
    launched = (names.member(nodes.group, number) for nodes in built.sets for number in range(1, nodes.static + 1))
    return [*(node.name for node in built.nodes), *launched]


def describe_machines(built: BuildPlan) -> str:
    """Return the machines of a cluster in one line."""
    if not built.sets:
        return format_count(len(built.nodes), "node")
    static = sum(nodes.static for nodes in built.sets)
    autoscaled = sum(nodes.count - nodes.static for nodes in built.sets)
    parts = [node.name for node in built.nodes]
    if static:
        parts.append(format_count(static, "static node"))
    if autoscaled:
        parts.append(f"up to {format_count(autoscaled, 'autoscaled node')}")
    return ", ".join(parts)
