"""The targets that a spec can name, each in its own folder."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    # Only for the type: it loads Pulumi, which takes longer than most commands run.
    from infra.targets.target import Target

# Imported only when asked for: the libraries of one cloud take longer to load than most commands run.
_TARGETS: Mapping[str, str] = {"local": "LocalTarget", "aws": "AwsTarget"}


def target(name: str) -> Target:
    """Return the target that a spec calls `name`."""
    if name not in _TARGETS:
        raise ValueError(f"target: {name} is not available. Allowed: {', '.join(sorted(_TARGETS))}")
    loaded: Target = getattr(import_module(f"infra.targets.{name}.target"), _TARGETS[name])()
    return loaded


def setup_phases(name: str) -> tuple[str, ...]:
    """Return the phases of set-up (docs/setup.md) that this machine needs to run the target; none means all.

    A target names them as SETUP_PHASES in its package, which loads none of its libraries.
    """
    if name not in _TARGETS:
        return ()
    phases: tuple[str, ...] = getattr(import_module(f"infra.targets.{name}"), "SETUP_PHASES", ())
    return phases
