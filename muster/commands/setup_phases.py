"""`muster setup-phases`: print the setup phases that a stack's target needs on this machine, for the Makefile."""

from __future__ import annotations

from cluster.spec.issue import SpecError
from cluster.spec.stack_file import cluster_of
from infra.targets.registry import setup_phases
from muster.commands.stacks import require_stack_file


def print_setup_phases(name: str) -> None:
    """Print the phases on one line; an empty line means all, as for an invalid stack file, which `up` reports."""
    try:
        cluster = cluster_of(require_stack_file(name).file)
    except SpecError:
        cluster = {}
    target = cluster.get("target") if isinstance(cluster, dict) else None
    print(" ".join(setup_phases(target) if isinstance(target, str) else ()))
