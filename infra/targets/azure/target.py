"""The Azure target: scale sets on an InfiniBand fabric, which then are set up over SSH like hosts."""

# ruff: noqa: PLC0415
# Pulumi and Azure's libraries are imported inside methods: every command imports every target's class.
from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from cluster.spec import ClusterSpec, Issue
from cluster.spec.issue import error
from infra.plan import BuildPlan
from infra.resources.error import ResourceError
from infra.targets.azure.plan import plan_azure
from infra.targets.azure.spec import LOGIN_FIX, SECTION, Azure, azure_section
from infra.targets.azure.validate import validate_azure
from infra.targets.cost import Cost, Quote
from infra.targets.rented.target import RentedTarget
from infra.targets.target import Built, Capabilities, Console, Context, Deployment, Leftover, Leftovers


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

    def quote(self, spec: ClusterSpec, console: Console) -> Quote:
        from infra.targets.azure.cost import PAGE, list_items
        from infra.targets.rented.cost import add_up

        table = self.cost(spec)
        source = f"prices of machines of {table.priced_on}"
        if not self.can_ask():
            return Quote(table, f"{source}; today's are asked for only with a login to Azure")
        from infra.targets.azure.quote import describe_source, quote_items

        try:
            with console.status("asking Azure for prices"):
                items = quote_items(list_items(spec))
        except ResourceError as failed:
            return Quote(table, f"{source}; today's could not be read ({failed})")
        return Quote(add_up(items, datetime.now(UTC).date(), PAGE), describe_source(), today=True)

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

    def leftovers(self, deployment: Deployment) -> Leftovers:
        self.require_login()
        from infra.targets.azure.leftovers import find_leftovers

        return find_leftovers(deployment)

    def remove(self, leftover: Leftover, until: float) -> None:
        from infra.targets.azure.leftovers import remove_leftover

        remove_leftover(leftover, until)

    def measure(self, leftover: Leftover) -> int | None:
        from infra.targets.azure.leftovers import measure_leftover

        return measure_leftover(leftover)
