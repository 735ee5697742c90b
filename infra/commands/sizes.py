"""How many machines a cluster has, in words: those that are there once it is up, and those that jobs can bring."""

from __future__ import annotations

from infra.plan.build_plan import BuildPlan


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
