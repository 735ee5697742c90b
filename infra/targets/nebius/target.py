"""The Nebius target: instances on an InfiniBand fabric, which then are set up over SSH like hosts."""

# ruff: noqa: PLC0415
# Pulumi and the SDK of Nebius are imported inside methods: every command imports every target's class.
from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path

from cluster.spec import ClusterSpec, Issue
from infra.plan import BuildPlan
from infra.targets.cost import Cost
from infra.targets.nebius.plan import plan_nebius
from infra.targets.nebius.spec import LOGIN_FIX, SECTION, Nebius
from infra.targets.nebius.validate import validate_nebius
from infra.targets.rented.target import LeftoversModule, QuoteModule, RentedTarget
from infra.targets.target import Built, Capabilities, Context


class NebiusTarget(RentedTarget):
    """The target whose nodes are instances of Nebius AI Cloud."""

    name = SECTION
    section = Nebius
    examples = ("nebius-full",)
    capabilities = Capabilities(
        fabrics=frozenset({"tcp", "infiniband"}),
        gpus=frozenset({"real"}),
        storage=frozenset({"volume", "existing"}),
        fields=frozenset({"groups.root_gb", "storage.id"}),
    )
    cloud = "Nebius"
    login_fix = LOGIN_FIX
    account = "project"
    account_example = "PROJECT"
    resource = "muster:NebiusResource"
    library = "nebius.sdk"
    not_checked = "the project is not checked: there is no login to Nebius"
    refusal = "its project cannot create it; nothing was created"

    def validate(self, spec: ClusterSpec, root: Path | None = None) -> Iterable[Issue]:  # noqa: ARG002  # the protocol has it
        return validate_nebius(spec)

    def plan(self, spec: ClusterSpec) -> BuildPlan:
        return plan_nebius(spec)

    def cost(self, spec: ClusterSpec) -> Cost:
        from infra.targets.nebius.cost import cost_nebius

        return cost_nebius(spec)

    def has_credentials(self) -> bool:
        from infra.targets.nebius.client import has_credentials

        return has_credentials()

    def judge_account(self, spec: ClusterSpec) -> Iterable[Issue]:
        from infra.targets.nebius.client import open_cloud
        from infra.targets.nebius.preflight import judge_account, read_account

        with open_cloud("nebius.project") as cloud:
            account = read_account(cloud, spec)
        return judge_account(spec, account)

    def build(self, plan: BuildPlan, context: Context) -> Built:
        from infra.resources.start import start_slurm
        from infra.targets.nebius.build.cluster import NebiusCluster

        cluster = NebiusCluster(plan, context)
        return Built(cluster.inventory, cluster.addresses, partial(start_slurm, cluster.inventory, context))

    def load_quote(self) -> QuoteModule:
        from infra.targets.nebius import quote

        return quote

    def load_leftovers(self) -> LeftoversModule:
        from infra.targets.nebius import leftovers

        return leftovers
