"""The local target put together: what it builds, costs, leaves behind."""

from __future__ import annotations

from functools import partial

from cluster.spec import ClusterSpec
from infra.plan import BuildPlan
from infra.targets.local import leftovers
from infra.targets.local.build import start as slurm
from infra.targets.local.build.cluster import LocalCluster
from infra.targets.target import Built, Context, Leftover, Leftovers


class LocalTarget:
    def build(self, plan: BuildPlan, context: Context) -> Built:
        built = LocalCluster(plan, context)
        return Built(built.inventory, built.addresses, partial(slurm.start, built.inventory, context))

    def usd_per_hour(self, spec: ClusterSpec) -> float:  # noqa: ARG002  # one's own machine, whatever runs on it
        return 0.0

    def leftovers(self, cluster: str, region: str = "") -> Leftovers:  # noqa: ARG002  # one machine has none
        return Leftovers(leftovers.find(cluster))

    def remove(self, leftover: Leftover, until: float) -> None:  # noqa: ARG002  # Docker waits by itself
        leftovers.remove(leftover)
