"""Where machines come from. One folder per target; `target` finds it by the name the spec uses."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module

from infra.targets.target import Built, Context, Leftover, Leftovers, Target

__all__ = ["Built", "Context", "Leftover", "Leftovers", "Target", "target"]

# Found by name when asked for: the libraries of one cloud take longer to load than most commands run.
_TARGETS: Mapping[str, str] = {"local": "LocalTarget", "aws": "AwsTarget"}


def target(name: str) -> Target:
    if name not in _TARGETS:
        raise ValueError(f"target: {name} is not available. Allowed: {', '.join(sorted(_TARGETS))}")
    made: Target = getattr(import_module(f"infra.targets.{name}.target"), _TARGETS[name])()
    return made
