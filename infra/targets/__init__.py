"""Where machines come from. One folder per target; `target` finds it by the name the spec uses."""

from __future__ import annotations

from infra.targets.local import LocalTarget
from infra.targets.target import Built, Context, Leftover, Target

__all__ = ["Built", "Context", "Leftover", "Target", "target"]

_TARGETS: dict[str, type[Target]] = {"local": LocalTarget}


def target(name: str) -> Target:
    if name not in _TARGETS:
        raise ValueError(f"target: {name} is not available. Allowed: {', '.join(sorted(_TARGETS))}")
    return _TARGETS[name]()
