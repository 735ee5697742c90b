"""Find the target and deployment of a stack from its inventory, its Pulumi state, its stack file or labels."""

from __future__ import annotations

import json
from dataclasses import replace

from cluster.spec import ClusterSpec
from cluster.spec.issue import SpecError
from infra.engine.command_line import format_command
from infra.engine.stop import Stop
from infra.home import StackHome
from infra.targets.registry import get_target, read_spec, targets
from infra.targets.target import Deployment, Leftover, Leftovers, Target


def find_deployment(stack: StackHome) -> tuple[Target, Deployment]:
    """Return the target and the deployment of a stack; raise Stop if there is none."""
    existing = search_deployment(stack)
    if existing is None:
        raise Stop(
            f"stack {stack.name} has no inventory, no state and no stack file", format_command("status", stack.name)
        )
    return existing


def search_deployment(stack: StackHome) -> tuple[Target, Deployment] | None:
    """Return the target and the deployment of a stack, or None if there is none.

    What was created takes precedence over the stack file, which may have been changed since or be unreadable.
    """
    spec = _spec(stack)
    try:
        written = json.loads(stack.inventory.read_text())
        target = get_target(written["target"])
        return target, target.deployment(stack, written["cluster"], spec)
    except (OSError, ValueError, KeyError):
        pass
    for target in targets().values():
        if in_state := target.deployment_in_state(stack, spec):
            return target, in_state
    if spec:
        target = get_target(spec.target)
        return target, target.deployment(stack, spec.name, spec)
    return _by_label(stack)


def find_own_leftovers(target: Target, deployment: Deployment) -> Leftovers:
    """Return the resources of a cluster, without those that carry another stack's label."""
    search = target.leftovers(deployment)
    return replace(search, resources=exclude_other_stacks(search.resources, deployment.stack))


def exclude_other_stacks(leftovers: list[Leftover], stack: str) -> list[Leftover]:
    """Return the resources that no other stack owns: another stack may use the same cluster name by mistake."""
    return [leftover for leftover in leftovers if leftover.stack in ("", stack)]


def _spec(stack: StackHome) -> ClusterSpec | None:
    try:
        return read_spec(stack.file)
    except SpecError:
        return None


def _by_label(stack: StackHome) -> tuple[Target, Deployment] | None:
    """Find a cluster by the stack's label."""
    for target in targets().values():
        clusters = target.labelled_clusters(stack.name)
        if len(clusters) > 1:
            raise Stop(
                f"stack {stack.name} has no readable stack file, and several clusters carry its label: "
                f"{', '.join(clusters)}",
                f"write the name of the cluster to remove into {stack.file}",
            )
        if clusters:
            return target, target.deployment(stack, clusters[0], None)
    return None
