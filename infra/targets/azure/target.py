"""The Azure target: scale sets on an InfiniBand fabric, which then are set up over SSH like hosts."""

# ruff: noqa: PLC0415
# Pulumi and Azure's libraries are imported inside methods: every command imports every target's class.
from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path

from cluster.spec import ClusterSpec, Issue
from cluster.spec.issue import error
from infra.plan import BuildPlan
from infra.targets.azure.plan import plan_azure
from infra.targets.azure.spec import LOGIN_FIX, SECTION, Azure, azure_section
from infra.targets.azure.validate import validate_azure
from infra.targets.cost import Cost
from infra.targets.rented.target import LeftoversModule, QuoteModule, RentedTarget
from infra.targets.target import Built, Capabilities, Context


class AzureTarget(RentedTarget):
    """The target whose nodes are virtual machines of Azure."""

    name = SECTION
    section = Azure
    examples = ("azure-full",)
    capabilities = Capabilities(
        fabrics=frozenset({"tcp", "infiniband"}),
        gpus=frozenset({"real"}),
        storage=frozenset({"volume", "nfs"}),
        fields=frozenset({"groups.root_gb"}),
    )
    cloud = "Azure"
    login_fix = LOGIN_FIX
    account = "subscription"
    account_example = "SUBSCRIPTION"
    resource = "muster:AzureResource"
    library = "azure.identity"
    not_checked = "the subscription is not checked: there is no login to Azure"
    refusal = "its subscription cannot create it; nothing was created"

    def validate(self, spec: ClusterSpec, root: Path | None = None) -> Iterable[Issue]:  # noqa: ARG002  # the protocol has it
        return validate_azure(spec)

    def change_issues(self, old: ClusterSpec, new: ClusterSpec) -> Iterable[Issue]:
        for name in old.storage.keys() & new.storage.keys():
            before, after = old.storage[name], new.storage[name]
            if before.kind == "volume" and before.size_gb != after.size_gb:
                message = f"{after.size_gb} would replace the filesystem of {before.size_gb} GB and delete its data"
                fix = f"write `size_gb: {before.size_gb}`, or add another storage and copy the data"
                yield error("azure_capacity", f"storage.{name}.size_gb", message, fix)

    def region(self, spec: ClusterSpec) -> str:
        section = azure_section(spec)
        return section.region if section else ""

    def plan(self, spec: ClusterSpec) -> BuildPlan:
        return plan_azure(spec)

    def cost(self, spec: ClusterSpec) -> Cost:
        from infra.targets.azure.cost import cost_azure

        return cost_azure(spec)

    def has_credentials(self) -> bool:
        from infra.targets.azure.client import has_credentials

        return has_credentials()

    def judge_account(self, spec: ClusterSpec) -> Iterable[Issue]:
        from infra.targets.azure.client import open_cloud
        from infra.targets.azure.preflight import judge_account, read_account

        with open_cloud("azure.subscription") as cloud:
            account = read_account(cloud, spec)
        return judge_account(spec, account)

    def build(self, plan: BuildPlan, context: Context) -> Built:
        from infra.resources.start import start_slurm
        from infra.targets.azure.build.cluster import AzureCluster

        cluster = AzureCluster(plan, context)
        return Built(cluster.inventory, cluster.addresses, partial(start_slurm, cluster.inventory, context))

    def load_quote(self) -> QuoteModule:
        from infra.targets.azure import quote

        return quote

    def load_leftovers(self) -> LeftoversModule:
        from infra.targets.azure import leftovers

        return leftovers
