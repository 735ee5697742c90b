"""The AWS target put together: what it builds, costs, leaves behind."""

from __future__ import annotations

from functools import partial

from cluster.spec import ClusterSpec
from infra.plan import BuildPlan
from infra.targets.aws import leftovers
from infra.targets.aws.build.cluster import AwsCluster
from infra.targets.aws.build.start import start
from infra.targets.aws.cost import cost
from infra.targets.target import Built, Context, Leftover, Leftovers


class AwsTarget:
    def build(self, plan: BuildPlan, context: Context) -> Built:
        built = AwsCluster(plan, context)
        return Built(built.inventory, built.addresses, partial(start, plan, built, context))

    def usd_per_hour(self, spec: ClusterSpec) -> float:
        return cost(spec).usd_per_hour

    def leftovers(self, cluster: str, region: str = "") -> Leftovers:
        return leftovers.find(cluster, region)

    def remove(self, leftover: Leftover, until: float) -> None:
        leftovers.remove(leftover, until)
