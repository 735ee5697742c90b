"""What muster's other commands do in AWS, each as a function that can be repeated: all but the engine's commands."""

from __future__ import annotations

import gzip
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from bootstrap.transport.base import TransportError
from cluster import names as cluster_names
from cluster.inventory import Inventory
from cluster.spec.issue import render
from infra.engine.stop import Stop
from infra.targets.aws import account, names, upgrade
from infra.targets.aws.facts import gather_facts
from infra.targets.aws.images.baked_images import PURPOSE_TAG, list_cluster_images, remove_cluster_image
from infra.targets.aws.images.build_images import build_images
from infra.targets.aws.images.permanent_machine import end_machine
from infra.targets.aws.launcher.instances import STATES
from infra.targets.aws.leftovers.search import find_leftovers
from infra.targets.aws.node import parameters
from infra.targets.aws.node_logs import list_node_logs
from infra.targets.aws.queue import open_queue
from infra.targets.aws.rehearse.errors.failing_cluster import FailingCluster
from infra.targets.aws.rehearse.moto_server import ACCOUNT
from infra.targets.aws.run_command_transport import RunCommandTransport
from infra.targets.aws.state import read_state_record
from infra.targets.aws.state_store import S3StateStore
from infra.targets.target import Deployment

SEARCH = "teardown search"
"""Name of the operation that lists everything of a cluster."""
_SPARE = "spare"
_KEY = "stacks/demo.json"


@dataclass
class Notes:
    """A console that keeps what it is told."""

    lines: list[str] = field(default_factory=list)

    def say(self, text: str) -> None:
        self.lines.append(text)

    def status(self, text: str) -> Any:
        self.lines.append(text)
        return nullcontext(_Line())


class _Line:
    def update(self, _text: str) -> None:
        pass


@dataclass
class Subject:
    """A cluster that is up, and what its operator works with."""

    cluster: FailingCluster
    notes: Notes = field(default_factory=Notes)
    """What the current run has printed."""

    @property
    def deployment(self) -> Deployment:
        return Deployment(self.cluster.spec.name, self.cluster.stack.name, self.cluster.region, ACCOUNT)

    @property
    def inventory(self) -> Inventory:
        return Inventory.model_validate_json(self.cluster.stack.inventory.read_text())

    @property
    def bucket(self) -> str:
        return names.bucket(self.deployment.cluster, ACCOUNT, self.cluster.region)

    @property
    def state_url(self) -> str:
        return f"s3://muster-errors-state/clusters?region={self.cluster.region}"


@dataclass(frozen=True)
class Operation:
    """A repeatable operation; `run` returns what the user reads besides the notes."""

    name: str
    run: Callable[[Subject], str]
    prepare: Callable[[Subject], None] = lambda _subject: None
    """Creates what a run needs and uses up. It meets no errors."""
    clear: Callable[[Subject], None] | None = None
    """Does what the next run would do first, and removes what `prepare` and successful runs leave on purpose."""
    is_independent: bool = False
    """Whether a call goes on after the error of another one, so that one run can meet many errors."""
    needs_cluster: bool = True
    """Whether `up` must have created the cluster."""


def check(subject: Subject) -> str:
    """Check the stack against the account, as `muster check` and the beginning of `muster up` do."""
    record = read_state_record(subject.cluster.stack.state)
    flight = account.check_with_account(subject.cluster.spec, [], record, subject.notes)
    return render(flight.issues if flight else [])


def check_new(subject: Subject) -> str:
    """Check the stack as if it had no cluster yet, with the images and the key that it names."""
    flight = account.check_with_account(subject.cluster.original, [], None, subject.notes)
    return render(flight.issues if flight else [])


def ask_prices(subject: Subject) -> str:
    """Return where the prices of `muster cost` come from."""
    return account.quote_cost(subject.cluster.spec, subject.notes).source


def read_status(subject: Subject) -> str:
    """Return what is wrong with Slurm, as `muster status` prints it."""
    facts = gather_facts(subject.inventory, subject.cluster.region, subject.cluster.stack.name)
    return facts.slurm.problem


def list_jobs(subject: Subject) -> str:
    """Ask for the running jobs, as `muster teardown` and a change of nodes do."""
    queue = open_queue(subject.cluster.region, subject.deployment.cluster, subject.cluster.stack.name)
    queue.running()
    return ""


def store_log(subject: Subject) -> None:
    """Store the log of a machine."""
    key = parameters.stored(cluster_names.CONTROLLER, "arn:aws:ec2:us-east-1:123456789012:instance/i-0123456789abcdef0")
    subject.cluster.client("s3").put_object(Bucket=subject.bucket, Key=key, Body=gzip.compress(b"a line\n"))


def read_logs(subject: Subject) -> str:
    """Read the stored logs of the controller."""
    return "".join(log.read() for log in list_node_logs(subject.deployment, cluster_names.CONTROLLER))


def build_image(subject: Subject) -> str:
    """Build and test the image of the machines without GPUs."""
    build_images(subject.cluster.spec, subject.cluster.stack.home, subject.deployment, subject.notes, ("plain",))
    return ""


def remove_images(subject: Subject) -> None:
    """Remove all images of the cluster, and the machines of builds, as the next build and `teardown` do."""
    ec2 = subject.cluster.client("ec2")
    own = [{"Name": f"tag:{cluster_names.CLUSTER}", "Values": [subject.deployment.cluster]}]
    build_images(subject.cluster.spec, subject.cluster.stack.home, subject.deployment, Notes(), ("none",))
    for image in ec2.describe_images(Owners=["self"], Filters=own)["Images"]:
        ec2.deregister_image(ImageId=image["ImageId"])
    for snapshot in ec2.describe_snapshots(OwnerIds=["self"], Filters=own)["Snapshots"]:
        ec2.delete_snapshot(SnapshotId=snapshot["SnapshotId"])


def create_tested_image(subject: Subject) -> None:
    """Create an image that looks as if it had been built and tested."""
    machine = _launch(subject, "builder", parameters.BUILDER)
    tags = {
        cluster_names.CLUSTER: subject.deployment.cluster,
        cluster_names.STACK: subject.deployment.stack,
        cluster_names.KEEP: "true",
        PURPOSE_TAG: "plain",
    }
    listed = [{"Key": key, "Value": value} for key, value in tags.items()]
    specifications = [{"ResourceType": kind, "Tags": listed} for kind in ("image", "snapshot")]
    ec2 = subject.cluster.client("ec2")
    ec2.create_image(InstanceId=machine, Name=f"errors-{uuid.uuid4()}", TagSpecifications=specifications)
    ec2.terminate_instances(InstanceIds=[machine])


def remove_image(subject: Subject) -> str:
    """List the images of the cluster and remove one."""
    image = list_cluster_images(subject.deployment)[0]
    remove_cluster_image(subject.deployment, image.id)
    return ""


def launch_spare(subject: Subject) -> None:
    """Launch a machine of a permanent node that the cluster does not have."""
    _launch(subject, _SPARE, cluster_names.LOGIN)


def end_spare(subject: Subject) -> str:
    """End the machine of a permanent node, as `muster image refresh` does."""
    end_machine(subject.deployment, _SPARE)
    return ""


def end_spares(subject: Subject) -> None:
    """End what `launch_spare` launched."""
    ec2 = subject.cluster.client("ec2")
    filters = [
        {"Name": f"tag:{cluster_names.NODE}", "Values": [_SPARE, "builder"]},
        # moto cannot end a machine twice: its network interface is gone.
        {"Name": "instance-state-name", "Values": list(STATES)},
    ]
    for reservation in ec2.describe_instances(Filters=filters)["Reservations"]:
        ec2.terminate_instances(InstanceIds=[machine["InstanceId"] for machine in reservation["Instances"]])


def upgrade_slurm(subject: Subject) -> str:
    """Do what `muster upgrade` does in AWS: find the nodes, publish packages, hold launches, and read a file."""
    deployment, spec = subject.deployment, subject.cluster.spec
    with _explained():
        nodes = upgrade.reach_nodes(deployment, subject.inventory)
        upgrade.publish_packages(deployment, nodes, spec.software.slurm)
        with upgrade.hold_launches(deployment, list(spec.groups)):
            controller = nodes.inventory.controller
            RunCommandTransport(subject.cluster.region, controller.machine_id, subject.bucket).get("/etc/hostname")
    return ""


def create_state_bucket(subject: Subject) -> str:
    """Create the bucket of a shared state, as `muster state create` does."""
    return ", ".join(S3StateStore(subject.state_url).create_bucket())


def drop_state_bucket(subject: Subject) -> None:
    """Delete the bucket with all versions."""
    s3, bucket = subject.cluster.client("s3"), S3StateStore(subject.state_url).parts.bucket
    if bucket not in {entry["Name"] for entry in s3.list_buckets()["Buckets"]}:
        return
    listed = s3.list_object_versions(Bucket=bucket)
    for entry in (*listed.get("Versions", ()), *listed.get("DeleteMarkers", ())):
        s3.delete_object(Bucket=bucket, Key=entry["Key"], VersionId=entry["VersionId"])
    s3.delete_bucket(Bucket=bucket)


def renew_state_bucket(subject: Subject) -> None:
    """Provide an empty bucket for a shared state."""
    drop_state_bucket(subject)
    create_state_bucket(subject)


def use_state(subject: Subject) -> str:
    """Use a shared state as commands do: check, lock, write, read, list and unlock."""
    store = S3StateStore(subject.state_url)
    store.check()
    store.create("locks/demo", b"me")
    store.write(_KEY, b"{}")
    store.read(_KEY)
    store.list_tags("stacks/")
    store.versions(_KEY)
    store.remove("locks/demo")
    return ""


def search_leftovers(subject: Subject) -> str:
    """Search everything that the cluster has in the account, as `muster teardown` does before and after."""
    search = find_leftovers(subject.deployment.cluster, subject.cluster.region)
    return "; ".join(search.unseen)


OPERATIONS = (
    Operation("check", check, is_independent=True),
    Operation("check (new)", check_new, is_independent=True, needs_cluster=False),
    Operation("cost", ask_prices, is_independent=True, needs_cluster=False),
    Operation("status", read_status),
    Operation("jobs", list_jobs),
    Operation("logs", read_logs, store_log),
    Operation("image build", build_image, clear=remove_images),
    Operation("image remove", remove_image, create_tested_image, remove_images),
    Operation("image refresh", end_spare, launch_spare, end_spares, needs_cluster=False),
    Operation("upgrade", upgrade_slurm),
    Operation("state create", create_state_bucket, drop_state_bucket, drop_state_bucket, needs_cluster=False),
    Operation("state", use_state, renew_state_bucket, drop_state_bucket, needs_cluster=False),
    Operation(SEARCH, search_leftovers, is_independent=True),
)


def _launch(subject: Subject, node: str, role: str) -> str:
    ec2 = subject.cluster.client("ec2")
    tags = {
        cluster_names.CLUSTER: subject.deployment.cluster,
        cluster_names.STACK: subject.deployment.stack,
        cluster_names.ROLE: role,
        cluster_names.NODE: node,
    }
    listed = [{"Key": key, "Value": value} for key, value in tags.items()]
    image = ec2.describe_images()["Images"][0]["ImageId"]
    specification = [{"ResourceType": "instance", "Tags": listed}]
    script = f"cluster={subject.deployment.cluster}\ndigest=none\n"
    # moto keeps the interface of a machine that ends, unless it is told otherwise.
    interface = {"DeviceIndex": 0, "SubnetId": ec2.describe_subnets()["Subnets"][0]["SubnetId"]}
    answer = ec2.run_instances(
        ImageId=image,
        MinCount=1,
        MaxCount=1,
        UserData=script,
        TagSpecifications=specification,
        NetworkInterfaces=[interface | {"DeleteOnTermination": True}],
    )
    return str(answer["Instances"][0]["InstanceId"])


@contextmanager
def _explained() -> Iterator[None]:
    """Raise what `muster upgrade` raises if a machine does not answer."""
    try:
        yield
    except TransportError as failure:
        raise Stop(str(failure), "remove the cause, then run it again") from failure
