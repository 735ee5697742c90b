"""What every target can do: build a plan, start Slurm on it, say what an hour costs, tell and remove what is left."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import pulumi

from cluster.spec import ClusterSpec
from infra.plan import BuildPlan
from infra.resources.secrets import ClusterSecrets


@dataclass(frozen=True)
class Context:
    """What a target needs beside the plan. Everything it builds depends on `guard`."""

    stack: str
    guard: pulumi.Resource
    spec: ClusterSpec
    secrets: ClusterSecrets

    @property
    def ssh_public_key(self) -> pulumi.Output[str]:
        return self.secrets.ssh_public_key

    @property
    def tags(self) -> Mapping[str, str]:
        return self.spec.tags


@dataclass(frozen=True)
class Built:
    inventory: pulumi.Output[str]
    """An Inventory as JSON, known once the machines that stay have their addresses."""
    addresses: pulumi.Output[dict[str, str]]
    start: Callable[[], pulumi.Output[dict[str, Any]]]
    """Makes a Slurm cluster of the machines; its output is known once a job has crossed them."""


@dataclass(frozen=True)
class Leftover:
    """Something that exists and carries the cluster's label (or its name, where there are no labels)."""

    kind: str
    name: str
    created: str = ""
    stack: str = ""
    home: str = ""
    """Label of the MUSTER_HOME that made it; empty where it carries none."""
    region: str = ""
    usd_per_hour: float = 0.0
    """What it costs as long as it exists."""
    kept: str = ""
    """Why it is to stay; empty where it should go."""


@dataclass(frozen=True)
class Leftovers:
    """What a search came to."""

    found: list[Leftover]
    unseen: tuple[str, ...] = ()
    """What could not be looked at, each with the reason."""


class Target(Protocol):
    def build(self, plan: BuildPlan, context: Context) -> Built: ...

    def usd_per_hour(self, spec: ClusterSpec) -> float: ...

    def leftovers(self, cluster: str, region: str = "") -> Leftovers:
        """What this MUSTER_HOME made, or nobody is known to have made, in the order in which it can be removed."""
        ...

    def remove(self, leftover: Leftover, until: float) -> None:
        """What is gone already is fine; what is still in use may be waited for `until` then (time.monotonic)."""
        ...
