"""What an upgrade needs from AWS: the running nodes, packages that the controller builds, and a pause of launches."""

from __future__ import annotations

import shlex
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from bootstrap.steps.cloud.slurm_packages import BUILD_TIMEOUT_S, PUBLISHED, SUMS, PackageBuild
from bootstrap.transport.base import Transport
from bootstrap.upgrade.steps import BUILT, PublishedPackages
from cluster import names as cluster_names
from cluster.inventory import Inventory, Node
from infra.resources.error import ResourceError
from infra.targets.aws import names
from infra.targets.aws.client import create_client
from infra.targets.aws.facts import to_node
from infra.targets.aws.instances import Instance, list_instances, translate_errors
from infra.targets.aws.launcher.instances import HELD_TAG
from infra.targets.aws.node.cloud import package_store_command
from infra.targets.aws.node.parameters import Report
from infra.targets.aws.node_reports import read_reports
from infra.targets.aws.run_command_transport import RunCommandTransport
from infra.targets.local.upgrade import MachineArgs, check_release, open_machine
from infra.targets.mixins import UpgradeNodes
from infra.targets.target import Deployment

BACKUPS = "/state/backups"
"""Folder on the volume that outlives the controller's machine."""
_LOG = "/var/log/muster-slurm-packages.log"
_CONNECT_TIMEOUT_S = 60.0
# A machine with eight GPUs takes that long until it has set itself up.
_STARTING_TIMEOUT_S, _POLL_S = 1200.0, 5.0
_TWIN_CPUS, _TWIN_MEMORY_MB = 2, 4096
_READ_DISTRIBUTION = '. /etc/os-release && echo "$ID $VERSION_ID"'


def reach_nodes(deployment: Deployment, inventory: Inventory) -> UpgradeNodes:
    """Return the nodes that are ready now, reached through Run Command."""
    region, bucket = deployment.region, _find_bucket(deployment)
    nodes = select_nodes(inventory, *_read_machines(deployment))
    if not any(node.role == "controller" for node in nodes):
        raise ResourceError("controller", "its machine does not run, or is not set up", "run `muster up`")

    def connect(node: Node) -> Transport:
        transport = RunCommandTransport(region, node.machine_id, bucket)
        transport.run("true", timeout=_CONNECT_TIMEOUT_S)
        return transport

    def is_gone(node: Node) -> bool:
        instances, _ = _read_machines(deployment)
        return not any(instance.id == node.machine_id and instance.state == "running" for instance in instances)

    return UpgradeNodes(inventory.model_copy(update={"nodes": nodes}), connect, BUILT, BACKUPS, is_gone)


def select_nodes(
    inventory: Inventory, instances: Sequence[Instance], reports: Mapping[str, Report]
) -> tuple[Node, ...]:
    """Return the nodes whose machine runs and has set itself up, in the order in which Slurm has them."""
    ready = {
        instance.name: instance.id
        for instance in instances
        if instance.state == "running" and _is_reported(instance, reports, "ready")
    }
    permanent = [
        node.model_copy(update={"machine_id": ready[node.name]}) for node in inventory.nodes if node.name in ready
    ]
    members = [
        to_node(node_set, name).model_copy(update={"machine_id": ready[name]})
        for node_set in inventory.sets
        for name in cluster_names.members(node_set.group, node_set.count)
        if name in ready
    ]
    return (*permanent, *members)


def find_starting(instances: Sequence[Instance], reports: Mapping[str, Report]) -> list[str]:
    """Return the compute nodes whose machines have been launched, but have not set themselves up yet."""
    return [
        instance.name or instance.id
        for instance in instances
        if instance.role == "compute"
        and instance.state in ("pending", "running")
        and not _is_reported(instance, reports, "ready", "failed")
    ]


def publish_packages(deployment: Deployment, nodes: UpgradeNodes, release: str) -> PublishedPackages:
    """Build the packages on the controller, unless they exist, and unpack them on the shared filesystem."""
    controller, shared = nodes.inventory.controller, nodes.inventory.mounts[0]
    transport = nodes.connect(controller)
    distribution = transport.run(_READ_DISTRIBUTION).out.strip()
    store = package_store_command(deployment.region, _find_bucket(deployment))
    script = PackageBuild(release, distribution, store, shared).render_script("publish")
    # Run Command returns little output, and not its end. In a shell of its own: `||` would switch off its `set -e`.
    logged = f"sh -c {shlex.quote(script)} >{_LOG} 2>&1 || {{ tail -n 1 {_LOG} >&2; exit 1; }}\ncat {SUMS}"
    done = transport.run(logged, timeout=BUILD_TIMEOUT_S)
    if done.code != 0:
        what = f"the controller has no packages of Slurm {release}: {done.err.strip()}"
        raise ResourceError("software.slurm", what, f"see {_LOG} on the controller; nothing has changed")
    return PublishedPackages(f"{shared}/{PUBLISHED}", done.out)


@contextmanager
def hold_launches(deployment: Deployment, groups: Collection[str], *, keep_after_error: bool = False) -> Iterator[None]:
    """Let the controller launch nothing, and wait until the machines that it has launched are set up.

    Jobs that need a node wait for it. After the block they do until `up` has published the release; an error ends the
    wait, unless it is to be kept.
    """
    ec2 = create_client("ec2", deployment.region)
    with translate_errors("the launches", deployment.region):
        controller = _find_controller(deployment)
        _write_held(ec2, controller, groups)
    try:
        _wait_for_starting(deployment)
        yield
    except BaseException as cause:
        if not keep_after_error:
            _end_hold(ec2, controller, cause)
        raise


def check_twin(release: str) -> None:
    """Raise ResourceError if there is no Docker here, or no node image with this release."""
    try:
        check_release(release)
    except ResourceError as error:
        what = f"the drill starts a twin of the controller in a container: {str(error).partition('. Fix: ')[0]}"
        fix = f"start Docker and run `python3 -m setup --slurm {release}`, or upgrade without a drill with `--no-drill`"
        raise ResourceError("", what, fix) from error


def open_controller_twin(cluster: str, stack: str, controller: Node, release: str) -> AbstractContextManager[Transport]:
    """Start a container on this machine with the controller's name; remove it at the end."""
    return open_machine(
        MachineArgs(cluster, stack, controller.name, cluster_names.image(release), _TWIN_CPUS, _TWIN_MEMORY_MB)
    )


def _read_machines(deployment: Deployment) -> tuple[list[Instance], dict[str, Report]]:
    region, cluster = deployment.region, deployment.cluster
    with translate_errors("the machines", region):
        instances = list_instances(region, cluster, deployment.stack)
        return instances, read_reports(create_client("ssm", region), cluster)


def _is_reported(instance: Instance, reports: Mapping[str, Report], *states: str) -> bool:
    report = reports.get(instance.name)
    return report is not None and report.instance == instance.id and report.state in states


def _wait_for_starting(deployment: Deployment) -> None:
    deadline = time.monotonic() + _STARTING_TIMEOUT_S
    while starting := find_starting(*_read_machines(deployment)):
        if time.monotonic() > deadline:
            what = f"{', '.join(starting)} have not set themselves up within {_STARTING_TIMEOUT_S / 60:.0f} minutes"
            raise ResourceError("groups", what, "wait until `muster status` shows them as ready, then upgrade again")
        time.sleep(_POLL_S)


def _find_controller(deployment: Deployment) -> str:
    instances = list_instances(deployment.region, deployment.cluster, deployment.stack)
    controllers = [instance.id for instance in instances if instance.role == cluster_names.CONTROLLER]
    if not controllers:
        raise ResourceError("controller", "it has no machine", "run `muster up`")
    return controllers[-1]


def _end_hold(ec2: Any, controller: str, cause: BaseException) -> None:
    try:
        _write_held(ec2, controller, ())
    except (ClientError, BotoCoreError) as error:
        what = f"the upgrade stopped ({cause or type(cause).__name__}), and nodes are not launched since: {error}"
        raise ResourceError("groups", what, "`muster up` launches them again") from error


def _write_held(ec2: Any, controller: str, groups: Collection[str]) -> None:
    ec2.create_tags(Resources=[controller], Tags=[{"Key": HELD_TAG, "Value": " ".join(sorted(groups))}])


def _find_bucket(deployment: Deployment) -> str:
    region = deployment.region
    with translate_errors("the account", region):
        account = deployment.account or create_client("sts", region).get_caller_identity()["Account"]
    return names.bucket(deployment.cluster, account, region)
