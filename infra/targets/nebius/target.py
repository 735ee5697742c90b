"""The Nebius target: instances on an InfiniBand fabric, which then are set up over SSH like hosts."""

# ruff: noqa: PLC0415
# Pulumi and the SDK of Nebius are imported inside methods: every command imports every target's class.
from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from cluster.spec import ClusterSpec, Issue
from infra.plan import BuildPlan
from infra.resources.error import ResourceError
from infra.targets.cost import Cost, Quote
from infra.targets.nebius.plan import plan_nebius
from infra.targets.nebius.spec import LOGIN_FIX, SECTION, Nebius, require_section
from infra.targets.nebius.validate import validate_nebius
from infra.targets.rented.target import RentedTarget
from infra.targets.target import Built, Capabilities, Console, Context, Deployment, Leftover, Leftovers


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

    def quote(self, spec: ClusterSpec, console: Console) -> Quote:
        from infra.targets.nebius.cost import PAGE, list_items
        from infra.targets.rented.cost import add_up

        table = self.cost(spec)
        source = f"instance prices of {table.priced_on}"
        if not self.can_ask():
            return Quote(table, f"{source}; today's need a login to Nebius")
        from infra.targets.nebius.quote import describe_source, quote_items

        try:
            with console.status("asking Nebius for prices"):
                items = quote_items(list_items(spec), require_section(spec).project)
        except ResourceError as failed:
            return Quote(table, f"{source}; today's could not be read ({failed})")
        return Quote(add_up(items, datetime.now(UTC).date(), PAGE), describe_source(), today=True)

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

    def leftovers(self, deployment: Deployment) -> Leftovers:
        self.require_login()
        from infra.targets.nebius.leftovers import find_leftovers

        return find_leftovers(deployment)

    def remove(self, leftover: Leftover, until: float) -> None:
        from infra.targets.nebius.leftovers import remove_leftover

        remove_leftover(leftover, until)

    def measure(self, leftover: Leftover) -> int | None:
        from infra.targets.nebius.leftovers import measure_leftover

        return measure_leftover(leftover)
