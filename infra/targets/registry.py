"""The targets that a spec can name, and the model of a stack file that follows from them.

A target of another package is found by its entry point in the group `muster.targets`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from cluster.spec import ClusterSpec, with_sections
from cluster.spec.load import load
from cluster.spec.stack_file import cluster_of
from infra.plan import BuildPlan
from infra.targets.mixins import OnThisMachine
from infra.targets.target import Target

ENTRY_POINTS = "muster.targets"
# Module and class of each target. To add one, add its folder and its line here.
_TARGETS: Mapping[str, str] = {
    "aws": "infra.targets.aws.target:AwsTarget",
    "azure": "infra.targets.azure.target:AzureTarget",
    "hosts": "infra.targets.hosts.target:HostsTarget",
    "local": "infra.targets.local.target:LocalTarget",
    "nebius": "infra.targets.nebius.target:NebiusTarget",
}


@cache
def targets() -> Mapping[str, Target]:
    """Return every target by the name that a spec uses."""
    references = {**_TARGETS, **{entry.name: entry.value for entry in entry_points(group=ENTRY_POINTS)}}
    return {name: _load(references[name]) for name in sorted(references)}


def get_target(name: str) -> Target:
    """Return the target that a spec calls `name`."""
    if name not in targets():
        raise ValueError(f"target: {name} is not available. Allowed: {', '.join(targets())}")
    return targets()[name]


def target_of(spec: ClusterSpec) -> Target:
    """Return the target of a spec."""
    return get_target(spec.target)


def plan_of(spec: ClusterSpec) -> BuildPlan:
    """Return the build plan of a valid spec."""
    return target_of(spec).plan(spec)


def setup_phases(name: str) -> tuple[str, ...]:
    """Return the phases of set-up (docs/setup.md) that a target needs on this machine; none means all."""
    return targets()[name].setup_phases if name in targets() else ()


@cache
def spec_model() -> type[ClusterSpec]:
    """Return the model of a stack file's cluster, with the section of every target."""
    sections = {name: target.section for name, target in targets().items() if target.section}
    # A cluster on this machine needs no account and nothing else that exists.
    example = next((name for name, target in targets().items() if isinstance(target, OnThisMachine)), None)
    return with_sections(tuple(targets()), sections, example)


def load_spec(data: Any) -> ClusterSpec:
    """Return the cluster that `data` describes; raise SpecError with every problem in it."""
    return load(data, spec_model())


def read_spec(stack_file: Path) -> ClusterSpec:
    """Return the cluster of a stack file; raise SpecError."""
    return load_spec(cluster_of(stack_file))


def parse_spec(text: str) -> ClusterSpec:
    """Return a spec that was written as JSON."""
    return spec_model().model_validate_json(text)


def _load(reference: str) -> Target:
    module, _, name = reference.partition(":")
    target: Target = getattr(import_module(module), name)()
    return target
