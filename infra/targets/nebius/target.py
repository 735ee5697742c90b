"""The Nebius target: instances on an InfiniBand fabric, which then are set up over SSH like hosts."""

# ruff: noqa: PLC0415
# Pulumi, the SDK of Nebius and the SSH library are imported inside methods: every command imports every target's class.
from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from cluster import names
from cluster.inventory import Inventory
from cluster.spec import ClusterSpec, Issue
from infra.engine.stop import Stop
from infra.home import Home, StackHome
from infra.plan import BuildPlan
from infra.resources.error import ResourceError
from infra.targets.cost import Cost, Quote
from infra.targets.mixins import Flight, ManagedStorage, Preflight, Pushes
from infra.targets.nebius.plan import plan_nebius
from infra.targets.nebius.spec import LOGIN_FIX, Nebius, nebius_section, require_section
from infra.targets.nebius.validate import validate_nebius
from infra.targets.target import Built, Capabilities, Console, Context, Deployment, Leftover, Leftovers, Target

if TYPE_CHECKING:
    from infra.resources.job_queue import JobQueue
    from infra.targets.facts import Facts

_EXTRA_FIX = "run `make setup`, or install muster with the extra `nebius`"


class NebiusTarget(Target, ManagedStorage, Preflight, Pushes):
    """The target whose nodes are instances of Nebius AI Cloud."""

    name = "nebius"
    section = Nebius
    examples = ("nebius-full",)
    capabilities = Capabilities(
        fabrics=frozenset({"tcp", "infiniband"}),
        gpus=frozenset({"real"}),
        storage=frozenset({"volume", "existing"}),
        fields=frozenset({"groups.root_gb", "storage.id"}),
    )
    setup_phases = ("apt", "venv", "pulumi")
    connect_timeout_s = 10
    not_checked = "the project is not checked: there is no login to Nebius"
    refusal = "its project cannot create it; nothing was created"

    def validate(self, spec: ClusterSpec, root: Path | None = None) -> Iterable[Issue]:  # noqa: ARG002  # the protocol has it
        return validate_nebius(spec)

    def nodes_concerned(self, path: str, spec: ClusterSpec) -> Sequence[str] | None:
        section, group = f"{self.name}.", f"{self.name}.groups."
        if not path.startswith(section):
            return None
        nodes = plan_nebius(spec).nodes
        if path.startswith(group):
            name = path.removeprefix(group).partition(".")[0]
            return [node.name for node in nodes if node.group == name]
        role = path.removeprefix(section).partition(".")[0]
        return [node.name for node in nodes if role not in (names.CONTROLLER, names.LOGIN) or node.role == role]

    def plan(self, spec: ClusterSpec) -> BuildPlan:
        return plan_nebius(spec)

    def resolve(self, spec: ClusterSpec) -> ClusterSpec:
        return spec

    def cost(self, spec: ClusterSpec) -> Cost:
        from infra.targets.nebius.cost import cost_nebius

        return cost_nebius(spec)

    def quote(self, spec: ClusterSpec, console: Console) -> Quote:
        from infra.targets.nebius.cost import add_up, list_items

        table = self.cost(spec)
        source = f"instance prices of {table.priced_on}"
        if not _can_ask():
            return Quote(table, f"{source}; today's need a login to Nebius")
        from infra.targets.nebius.quote import describe_source, quote_items

        try:
            with console.status("asking Nebius for prices"):
                items = quote_items(list_items(spec), require_section(spec).project)
        except ResourceError as failed:
            return Quote(table, f"{source}; today's could not be read ({failed})")
        return Quote(add_up(items, datetime.now(UTC).date()), describe_source(), today=True)

    def preflight(self, spec: ClusterSpec, issues: list[Issue], stack: StackHome, console: Console) -> Flight | None:  # noqa: ARG002
        if any(issue.level == "error" for issue in issues):
            return Flight(issues)
        if not _can_ask():
            return None
        from infra.targets.nebius.client import open_cloud
        from infra.targets.nebius.preflight import judge_account, read_account

        with console.status("asking Nebius"), open_cloud("nebius.project") as cloud:
            account = read_account(cloud, spec)
        return Flight([*issues, *judge_account(spec, account)])

    def clear(
        self, spec: ClusterSpec, issues: list[Issue], stack: StackHome, console: Console, *, full: bool
    ) -> Flight:
        _require_sdk()
        flight = self.preflight(spec, issues, stack, console) if full else Flight(issues)
        if flight is None:
            raise Stop("there are no credentials for Nebius", LOGIN_FIX)
        return flight

    def prepare(self, home: Home, console: Console) -> None:  # noqa: ARG002  # nothing is fetched
        _require_sdk()

    def build(self, plan: BuildPlan, context: Context) -> Built:
        from infra.resources.start import start_slurm
        from infra.targets.nebius.build.cluster import NebiusCluster

        cluster = NebiusCluster(plan, context)
        return Built(cluster.inventory, cluster.addresses, partial(start_slurm, cluster.inventory, context))

    def deployment(self, stack: StackHome, cluster: str, spec: ClusterSpec | None) -> Deployment:
        from infra.targets.nebius.state import read_cluster

        existing = read_cluster(stack.state)
        section = nebius_section(spec) if spec else None
        project = existing[1] if existing else section.project if section else ""
        if not project:
            what = f"neither the state nor the stack file of {stack.name} names the project of cluster {cluster}"
            raise Stop(what, f"write `nebius: {{project: PROJECT}}` into {stack.file}")
        return Deployment(cluster, stack.name, account=project)

    def deployment_in_state(self, stack: StackHome, spec: ClusterSpec | None) -> Deployment | None:  # noqa: ARG002
        from infra.targets.nebius.state import read_cluster

        existing = read_cluster(stack.state)
        return Deployment(existing[0], stack.name, account=existing[1]) if existing else None

    def queue(self, deployment: Deployment) -> JobQueue:
        from infra.targets.hosts.queue import open_queue

        return open_queue(deployment)

    def facts(self, inventory: Inventory, stack: StackHome, deployment: Deployment) -> Facts:  # noqa: ARG002
        from infra.targets.hosts.facts import gather

        return gather(inventory, stack)

    def leftovers(self, deployment: Deployment) -> Leftovers:
        _require_sdk()
        from infra.targets.nebius.leftovers import find_leftovers

        return find_leftovers(deployment)

    def remove(self, leftover: Leftover, until: float) -> None:
        from infra.targets.nebius.leftovers import remove_leftover

        remove_leftover(leftover, until)

    def measure(self, leftover: Leftover) -> int | None:
        from infra.targets.nebius.leftovers import measure_leftover

        return measure_leftover(leftover)


def _can_ask() -> bool:
    try:
        from infra.targets.nebius.client import has_credentials
    except ModuleNotFoundError:
        return False
    return has_credentials()


def _require_sdk() -> None:
    try:
        import nebius.sdk  # noqa: F401
    except ModuleNotFoundError as missing:
        what = f"target nebius needs the Python package {missing.name}, which is not installed"
        raise Stop(what, _EXTRA_FIX) from missing
