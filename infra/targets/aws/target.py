"""The AWS target: machines, networking and storage of an account, and a launcher that Slurm calls."""

# ruff: noqa: PLC0415
# AWS's and Pulumi's libraries are imported inside methods: every command imports every target's class.
from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cluster import names
from cluster.inventory import Inventory
from cluster.plural import format_count
from cluster.spec import ClusterSpec, Issue
from infra.engine.stop import Stop
from infra.home import Home, StackHome
from infra.plan import BuildPlan
from infra.targets.aws import account_types, fallback_images, refusals
from infra.targets.aws.cost import cost
from infra.targets.aws.launcher import retries
from infra.targets.aws.plan import budget, images, machines
from infra.targets.aws.spec import CAPABILITIES, Aws, region_of
from infra.targets.aws.state import read_state_record
from infra.targets.aws.validate import registry, update
from infra.targets.aws.validate.budget import BY_PRICE
from infra.targets.cost import Cost, Quote
from infra.targets.error_coverage import ErrorCoverage, ErrorOptions
from infra.targets.mixins import (
    Budgeted,
    Flight,
    KeepsLogs,
    Launches,
    MachineImage,
    ManagedStorage,
    NodeLog,
    Preflight,
    RefreshesImages,
    RehearsalOptions,
    Rehearses,
    RotatesKeys,
    StoresState,
    UpgradeNodes,
    Upgrades,
)
from infra.targets.target import Built, Console, Context, Deployment, Leftover, Leftovers, Target

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from bootstrap.transport.base import Transport
    from bootstrap.upgrade.steps import PublishedPackages
    from cluster.inventory import Node
    from infra.engine.state_store import StateStore
    from infra.resources import access
    from infra.resources.job_queue import JobQueue
    from infra.targets.aws.leftovers.kind import AccountRegion
    from infra.targets.facts import Facts


class AwsTarget(
    Target,
    Launches,
    Preflight,
    Rehearses,
    Budgeted,
    RefreshesImages,
    RotatesKeys,
    KeepsLogs,
    ManagedStorage,
    StoresState,
    Upgrades,
):
    """The target whose nodes are EC2 instances; Slurm launches compute nodes as the queue needs them."""

    name = "aws"
    examples = ("aws-existing-vpc", "aws-full", "aws-g6-pair", "aws-p5-autoscaled", "aws-p5en-lustre")
    capabilities = CAPABILITIES
    section = Aws
    reserved_tags = ("aws:",)
    setup_phases = ("apt", "venv", "pulumi")
    # Opening a connection includes starting a Session Manager session between the AWS CLI and the machine's agent.
    connect_timeout_s = 15
    # At most, these are stopped and started with another type; they keep their address, queue and accounting.
    stable_nodes = frozenset({names.CONTROLLER, names.LOGIN})
    not_checked = (
        "no AWS credentials found: quotas, zones, capacity, images, permissions and today's prices are not checked"
    )
    price_issues = BY_PRICE
    image_use = "then run `make up`, which replaces compute nodes"
    state_scheme = "s3"
    state_example = "s3://BUCKET/PREFIX?region=REGION"
    storage_removal = "delete the filesystems and snapshots in AWS by hand"
    backup_help = (
        "AWS backs up filesystems with `backup_days` under `storage:`, and queue and accounting with "
        "`state_backup_days` under `aws:`; docs/aws.md shows how to restore them"
    )

    def __init__(self) -> None:
        # A teardown may remove hundreds of resources: their clients are created once.
        self._regions: dict[str, AccountRegion] = {}

    def look_up(self, spec: ClusterSpec) -> Iterable[Issue]:
        return account_types.look_up_types(spec)

    def validate(self, spec: ClusterSpec, root: Path | None = None) -> Iterable[Issue]:
        account_types.load_stored_types()
        return registry.validate(spec, root)

    def plan(self, spec: ClusterSpec) -> BuildPlan:
        # Pulumi runs the guard of changes in a process of its own, where no rule has loaded them.
        account_types.load_stored_types()
        return machines.build_plan(spec)

    def resolve(self, spec: ClusterSpec) -> ClusterSpec:
        account_types.load_stored_types()
        return images.with_group_images(machines.with_default_types(spec))

    def cost(self, spec: ClusterSpec) -> Cost:
        return cost(spec)

    def quote(self, spec: ClusterSpec, console: Console) -> Quote:
        from infra.targets.aws import account

        return account.quote_cost(spec, console)

    def region(self, spec: ClusterSpec) -> str:
        return region_of(spec)

    def budget_note(self, spec: ClusterSpec) -> str:
        return budget.describe(spec)

    def preflight(self, spec: ClusterSpec, issues: list[Issue], stack: StackHome, console: Console) -> Flight | None:
        from infra.targets.aws import account

        return account.check_with_account(spec, issues, read_state_record(stack.state), console)

    def clear(
        self, spec: ClusterSpec, issues: list[Issue], stack: StackHome, console: Console, *, full: bool
    ) -> Flight:
        from infra.targets.aws import account

        record, store = read_state_record(stack.state), partial(fallback_images.store_fallbacks, stack)
        return account.clear_for_creation(spec, issues, record, console, full=full, store_fallbacks=store)

    def scenarios(self) -> Mapping[str, str]:
        from infra.targets.aws.rehearse.scenarios import SCENARIOS

        return {name: str(scenario) for name, scenario in SCENARIOS.items()}

    def look_up_offline(self, spec: ClusterSpec) -> None:
        if account_types.has_unknown_types(spec):
            with _explain_missing_package():
                from infra.targets.aws.rehearse.described_types import load_types

            load_types(spec)

    def rehearse(self, stack: StackHome, options: RehearsalOptions, console: Console) -> Path:
        from infra.targets.aws.rehearse.scenarios import split_scenarios

        # Scenarios that cannot share a cluster are rejected before moto is imported, which takes seconds.
        names = split_scenarios(options.scenario)
        with _explain_missing_package():
            from infra.targets.aws.rehearse.rehearsal import rehearse
            from infra.targets.aws.rehearse.scenario_steps import combine_steps

        return rehearse(stack, options, console, combine_steps(names))

    def rehearse_errors(self, stack: StackHome, options: ErrorOptions, console: Console) -> ErrorCoverage:
        from infra.targets.aws.rehearse.errors.share import begin_share

        # An unknown code or command is rejected before moto is imported, which takes seconds.
        share = begin_share(options)
        console.say(f"rehearsing {format_count(len(share.codes), 'error')} at the calls of stack {stack.name}")
        with _explain_missing_package():
            from infra.targets.aws.rehearse.errors.rehearse_errors import rehearse_errors

        return rehearse_errors(stack, share, console)

    def build(self, plan: BuildPlan, context: Context) -> Built:
        from infra.targets.aws.build.cluster import AwsCluster
        from infra.targets.aws.build.start import start_cluster

        cluster = AwsCluster(plan, context)
        return Built(cluster.inventory, cluster.addresses, partial(start_cluster, plan, cluster, context))

    def document_blocks(self) -> Mapping[str, Mapping[str, str]]:
        from infra.targets.aws import documents

        return documents.document_blocks()

    def golden_files(self) -> Mapping[str, str]:
        from infra.targets.aws import documents

        return documents.golden_files()

    def prepare(self, home: Home, console: Console) -> None:
        from infra.targets.aws import plugin

        plugin.ensure(home, console.say)

    def explain_failure(self, message: str, again: str) -> str:
        return refusals.explain_refusal(message, again)

    def describe_retries(self, stack: StackHome) -> str:
        return retries.describe_retries(retries.take_retries(stack.progress))

    def change_issues(self, old: ClusterSpec, new: ClusterSpec) -> Iterable[Issue]:
        return update.check_shrinking(old, new)

    def nodes_concerned(self, path: str, spec: ClusterSpec) -> Sequence[str] | None:  # noqa: ARG002
        # Permanent machines keep their image, and `resolve` writes out the image of each group. ARG002: this holds for
        # every spec.
        return () if update.is_image_field(path) else None

    def deployment(self, stack: StackHome, cluster: str, spec: ClusterSpec | None) -> Deployment:
        """Return the deployment; its state takes precedence, because the stack file may have changed since."""
        in_state = read_state_record(stack.state)
        region = (in_state and in_state.region) or (region_of(spec) if spec else "")
        if not cluster or not region:
            what = "which cluster it is" if not cluster else f"in which region cluster {cluster} is"
            raise Stop(f"nothing says {what}", f"put {stack.file} back")
        return Deployment(cluster, stack.name, region, in_state.account if in_state else "")

    def deployment_in_state(self, stack: StackHome, spec: ClusterSpec | None) -> Deployment | None:
        in_state = read_state_record(stack.state)
        if in_state is None:
            return None
        return self.deployment(stack, in_state.cluster or (spec.name if spec else ""), spec)

    def check_access(self, deployment: Deployment) -> None:
        if deployment.account:
            from infra.targets.aws.caller import check_account

            check_account(deployment.cluster, deployment.account, deployment.region)

    def queue(self, deployment: Deployment) -> JobQueue:
        from infra.targets.aws.queue import open_queue

        return open_queue(deployment.region, deployment.cluster, deployment.stack)

    def facts(self, inventory: Inventory, stack: StackHome, deployment: Deployment) -> Facts:
        from infra.targets.aws.facts import gather_facts

        return gather_facts(inventory, deployment.region, stack.name)

    def access_files(self, folder: Path, properties: Mapping[str, Any]) -> access.Files:
        from infra.targets.aws.build.access import render_files

        return render_files(folder, dict(properties))

    def open_state(self, url: str) -> StateStore:
        from infra.targets.aws.state_store import S3StateStore

        return S3StateStore(url)

    def create_state(self, url: str) -> Sequence[str]:
        from infra.targets.aws.state_store import S3StateStore

        return S3StateStore(url).create_bucket()

    def check_shell_tools(self) -> None:
        from infra.targets.aws.shell import check_tools

        check_tools()

    def ssh_options(self, deployment: Deployment, node: str) -> list[str]:
        from infra.targets.aws.shell import get_ssh_options

        return get_ssh_options(deployment, node)

    def node_logs(self, deployment: Deployment, node: str) -> Sequence[NodeLog]:
        from infra.targets.aws.node_logs import list_node_logs

        return list_node_logs(deployment, node)

    def check_release(self, spec: ClusterSpec, stack: StackHome, release: str) -> None:
        """Check the images only: every release has a pinned source, which the controller builds."""
        from infra.targets.aws.images.baked_images import check_release

        check_release(spec, release, fallback_images.list_unnamed_images(stack, spec))

    def wait_for_launched_nodes(
        self, spec: ClusterSpec, stack: StackHome, console: Console, *, starting: bool = True
    ) -> None:
        from infra.targets.aws.launched_nodes import wait_for_launched_nodes

        wait_for_launched_nodes(self.deployment(stack, spec.name, spec), console, starting=starting)

    def reach_nodes(self, spec: ClusterSpec, stack: StackHome, inventory: Inventory) -> UpgradeNodes:
        from infra.targets.aws.upgrade import reach_nodes

        return reach_nodes(self.deployment(stack, spec.name, spec), inventory)

    def publish_packages(
        self, spec: ClusterSpec, stack: StackHome, nodes: UpgradeNodes, release: str
    ) -> PublishedPackages:
        from infra.targets.aws.upgrade import publish_packages

        return publish_packages(self.deployment(stack, spec.name, spec), nodes, release)

    def hold_launches(
        self, spec: ClusterSpec, stack: StackHome, *, keep_after_error: bool = False
    ) -> AbstractContextManager[None]:
        from infra.targets.aws.upgrade import hold_launches

        deployment = self.deployment(stack, spec.name, spec)
        return hold_launches(deployment, list(spec.groups), keep_after_error=keep_after_error)

    def check_twin(self, release: str) -> None:
        from infra.targets.aws.upgrade import check_twin

        check_twin(release)

    def open_twin(
        self, spec: ClusterSpec, stack: str, controller: Node, release: str
    ) -> AbstractContextManager[Transport]:
        from infra.targets.aws.upgrade import open_controller_twin

        return open_controller_twin(spec.name, stack, controller, release)

    def build_images(
        self, spec: ClusterSpec, stack: StackHome, deployment: Deployment, console: Console
    ) -> Mapping[str, MachineImage]:
        from infra.targets.aws.images.build_images import build_images

        built = build_images(spec, stack.home, deployment, console)
        return {f"{self.name}.{field}": image for field, image in built.items()}

    def image_paths(self, spec: ClusterSpec, built: Sequence[MachineImage]) -> Sequence[str]:
        from infra.targets.aws.images.planned_images import plan_images

        planned = plan_images(images.without_group_images(spec, [image.id for image in built]))
        return [f"{self.name}.{image.field}" for image in planned]

    def groups_of_image(self, path: str, spec: ClusterSpec) -> Sequence[str]:
        return [name for name, group in spec.groups.items() if update.names_image_of(path, group)]

    def list_images(self, deployment: Deployment) -> Sequence[MachineImage]:
        from infra.targets.aws.images.baked_images import list_cluster_images

        return list_cluster_images(deployment)

    def remove_image(self, deployment: Deployment, image: str) -> None:
        from infra.targets.aws.images.baked_images import remove_cluster_image

        remove_cluster_image(deployment, image)

    def unnamed_images(self, stack: StackHome, spec: ClusterSpec | None) -> Sequence[str]:
        return list(fallback_images.list_unnamed_images(stack, spec).values())

    def forget_choices(self, stack: StackHome) -> None:
        fallback_images.store_fallbacks(stack, {})

    def end_machine(self, deployment: Deployment, node: str) -> None:
        from infra.targets.aws.images.permanent_machine import end_machine

        end_machine(deployment, node)

    def leftovers(self, deployment: Deployment) -> Leftovers:
        from infra.targets.aws.leftovers.search import find_leftovers

        return find_leftovers(deployment.cluster, deployment.region)

    def remove(self, leftover: Leftover, until: float) -> None:
        from infra.targets.aws.leftovers.kind import AccountRegion
        from infra.targets.aws.leftovers.search import remove_leftover

        account = self._regions.setdefault(leftover.region, AccountRegion(leftover.region))
        remove_leftover(leftover, until, account)

    def price_notes(self, remaining: Iterable[Leftover]) -> Sequence[str]:
        from infra.targets.aws.leftovers.search import list_price_notes

        return list_price_notes(remaining)


@contextmanager
def _explain_missing_package() -> Iterator[None]:
    """Raise Stop if a package is missing that only rehearsals need."""
    try:
        yield
    except ModuleNotFoundError as missing:
        fix = "run `make setup`, or install muster with the extra `rehearse`"
        raise Stop(f"a rehearsal needs the Python package {missing.name}, which is not installed", fix) from missing
