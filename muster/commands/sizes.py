"""The machines of a cluster: those that are there once it is up, by name, and those that jobs can bring, in words."""

from __future__ import annotations

from cluster import names
from infra.plan import BuildPlan


def always(built: BuildPlan) -> list[str]:
    """Nodes that `up` makes or waits for."""
    launched = (names.member(part.group, number) for part in built.sets for number in range(1, part.static + 1))
    return [*(node.name for node in built.nodes), *launched]


def machines(built: BuildPlan) -> str:
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
