"""An upgrade on AWS: which nodes take part, how files are read, and that nothing is launched meanwhile."""

from __future__ import annotations

import subprocess
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import pytest

from bootstrap.transport.base import Completed, TransportError
from cluster.inventory import Inventory, Node, NodeSet
from infra.resources.error import ResourceError
from infra.targets.aws import names, run_command, upgrade
from infra.targets.aws.instances import Instance
from infra.targets.aws.launcher.instances import HELD_TAG
from infra.targets.aws.node import parameters
from infra.targets.aws.node.parameters import Report
from infra.targets.aws.run_command_transport import RunCommandTransport
from infra.targets.target import Deployment
from tests.moto_server import REGION, Moto

DEPLOYMENT = Deployment("toy", "s", REGION, "123456789012")
CONTROLLER = Node(
    name="controller", role="controller", address="10.0.0.4", host_key="k", machine_id="i-0", cpus=2, memory_mb=2048
)
INVENTORY = Inventory(
    cluster="toy",
    target="aws",
    nodes=(CONTROLLER,),
    sets=(NodeSet(group="gpu", count=12, static=0, cpus=4, memory_mb=2048),),
)


def instance(name: str, id_: str, state: str = "running", role: str = "compute") -> Instance:
    return Instance(id_, name, role, state, datetime(2026, 1, 1, tzinfo=UTC))


def report(id_: str, state: Literal["working", "ready", "failed"] = "ready") -> Report:
    return Report(instance=id_, state=state)


MACHINES = [
    instance("gpu-3", "i-3"),
    instance("gpu-10", "i-10"),
    instance("gpu-4", "i-4"),
    instance("gpu-5", "i-5", "pending"),
    instance("gpu-6", "i-6"),
    instance("gpu-7", "i-7", "stopping"),
    instance("controller", "i-1", role="controller"),
]
REPORTS = {
    "controller": report("i-1"),
    "gpu-3": report("i-3"),
    "gpu-10": report("i-10"),
    # The report of the machine that had this name before.
    "gpu-4": report("i-old"),
    "gpu-6": report("i-6", "failed"),
    "gpu-7": report("i-7"),
}


def test_nodes_that_are_ready_take_part_in_the_order_of_slurm() -> None:
    nodes = upgrade.select_nodes(INVENTORY, MACHINES, REPORTS)
    assert [(node.name, node.machine_id) for node in nodes] == [
        ("controller", "i-1"),
        ("gpu-3", "i-3"),
        ("gpu-10", "i-10"),
    ]


def test_machines_that_set_themselves_up_are_awaited() -> None:
    assert upgrade.find_starting(MACHINES, REPORTS) == ["gpu-4", "gpu-5"]


def start_instance(aws: Moto, role: str, node: str) -> str:
    ec2 = aws.client("ec2")
    tags = {"muster.cluster": "toy", "muster.stack": "s", "muster.role": role, "muster.node": node}
    listed = [{"Key": key, "Value": value} for key, value in tags.items()]
    image = ec2.describe_images()["Images"][0]["ImageId"]
    specification = [{"ResourceType": "instance", "Tags": listed}]
    response = ec2.run_instances(ImageId=image, MinCount=1, MaxCount=1, TagSpecifications=specification)
    return str(response["Instances"][0]["InstanceId"])


def read_held(aws: Moto, controller: str) -> list[str]:
    described = aws.client("ec2").describe_instances(InstanceIds=[controller])["Reservations"][0]["Instances"][0]
    return next((tag["Value"] for tag in described["Tags"] if tag["Key"] == HELD_TAG), "").split()


def test_nothing_is_launched_until_up_unless_the_upgrade_fails(aws: Moto) -> None:
    controller = start_instance(aws, "controller", "controller")
    seen: list[str] = []

    def fail() -> None:
        with upgrade.hold_launches(DEPLOYMENT, ["gpu", "cpu"]):
            seen.extend(read_held(aws, controller))
            raise TransportError("gpu-1", "no answer")

    with pytest.raises(TransportError):
        fail()
    assert seen == ["cpu", "gpu"]
    assert read_held(aws, controller) == []
    with upgrade.hold_launches(DEPLOYMENT, ["gpu"]):
        pass
    assert read_held(aws, controller) == ["gpu"]


def test_nothing_is_launched_after_a_failed_return(aws: Moto) -> None:
    controller = start_instance(aws, "controller", "controller")

    def fail() -> None:
        with upgrade.hold_launches(DEPLOYMENT, ["gpu"], keep_after_error=True):
            raise TransportError("gpu-1", "no answer")

    with pytest.raises(TransportError):
        fail()
    assert read_held(aws, controller) == ["gpu"]


@pytest.mark.parametrize("action", ["DescribeInstances", "CreateTags", "GetParametersByPath"])
def test_an_error_of_aws_is_named_and_leaves_no_hold(aws: Moto, action: str) -> None:
    controller = start_instance(aws, "controller", "controller")
    aws.fail(action, "UnauthorizedOperation")
    with (
        pytest.raises(ResourceError, match=r"UnauthorizedOperation\. Fix: use credentials"),
        upgrade.hold_launches(DEPLOYMENT, ["gpu"]),
    ):
        pytest.fail("the block must not run")
    assert read_held(aws, controller) == []


def test_a_hold_that_cannot_be_ended_is_reported_with_its_cause(aws: Moto) -> None:
    start_instance(aws, "controller", "controller")

    def fail() -> None:
        with upgrade.hold_launches(DEPLOYMENT, ["gpu"]):
            aws.fail("CreateTags", "UnauthorizedOperation")
            raise TransportError("gpu-1", "no answer")

    cause = r"groups: the upgrade stopped \(node gpu-1: no answer\.\), and nodes are not launched since: .*Unauthorized"
    with pytest.raises(ResourceError, match=rf"{cause}.*Fix: `muster up` launches them again"):
        fail()


def test_an_upgrade_does_not_begin_while_a_node_starts(aws: Moto, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upgrade, "_STARTING_TIMEOUT_S", 0.0)
    controller = start_instance(aws, "controller", "controller")
    machine = start_instance(aws, "compute", "gpu-1")
    with (
        pytest.raises(ResourceError, match=r"groups: gpu-1 have not set themselves up within 0 minutes"),
        upgrade.hold_launches(DEPLOYMENT, ["gpu"]),
    ):
        pytest.fail("the block must not run")
    assert read_held(aws, controller) == []
    name = parameters.node("toy", "gpu-1")
    aws.client("ssm").put_parameter(Name=name, Value=report(machine).model_dump_json(), Type="String")
    with upgrade.hold_launches(DEPLOYMENT, ["gpu"]):
        assert read_held(aws, controller) == ["gpu"]


def test_without_a_controller_there_is_nothing_to_upgrade(aws: Moto) -> None:
    with (
        pytest.raises(ResourceError, match="controller: it has no machine"),
        upgrade.hold_launches(DEPLOYMENT, ["gpu"]),
    ):
        pytest.fail("the block must not run")
    start_instance(aws, "controller", "controller")
    with pytest.raises(ResourceError, match="controller: its machine does not run, or is not set up"):
        upgrade.reach_nodes(DEPLOYMENT, INVENTORY)


def test_a_file_of_any_size_comes_through_the_bucket_and_does_not_stay_there(
    aws: Moto,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    s3, bucket = aws.client("s3"), names.bucket("toy", "123456789012", REGION)
    s3.create_bucket(Bucket=bucket)
    s3.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    content = b"x" * 100_000

    def store(_region: str, _instance: str, script: str, _timeout_s: float) -> Completed:
        *_, name, command, path = script.split()
        assert (command, path) == ("store", "/run/queue")
        s3.put_object(Bucket=bucket, Key=parameters.packages(name), Body=content)
        return Completed(0, "", "")

    monkeypatch.setattr(run_command, "run", store)
    assert RunCommandTransport(REGION, "i-1", bucket).get("/run/queue") == content
    assert "Versions" not in s3.list_object_versions(Bucket=bucket)


class Shell:
    """A transport that runs the build in a shell that finds none of its programs."""

    def __init__(self, log: Path) -> None:
        self._log = log

    def run(self, script: str, **_: Any) -> Completed:
        if "os-release" in script:
            return Completed(0, "ubuntu 22.04\n", "")
        assert "MODE=publish\n" in script
        assert "PUBLISHED=/shared/.packages/slurm/26.05\n" in script
        local = script.replace(upgrade._LOG, str(self._log)).replace("cd /opt/muster/current", "PATH=/nowhere")
        done = subprocess.run(["/bin/sh", "-c", local], capture_output=True, text=True, check=False, timeout=30)
        return Completed(done.returncode, "", done.stderr)


def test_packages_that_cannot_be_built_end_the_upgrade_before_anything_changes(tmp_path: Path) -> None:
    nodes: Any = SimpleNamespace(inventory=INVENTORY, connect=lambda _node: Shell(tmp_path / "log"))
    with pytest.raises(ResourceError, match=r"no packages of Slurm 26\.05: .*mkdir: not found"):
        upgrade.publish_packages(DEPLOYMENT, nodes, "26.05")


def test_a_machine_without_docker_can_upgrade_without_a_drill(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_release: str) -> None:
        raise ResourceError("twin", "Docker does not answer", "start Docker")

    monkeypatch.setattr(upgrade, "check_release", refuse)
    with pytest.raises(ResourceError, match=r"Docker does not answer\. Fix: .*`--no-drill`"):
        upgrade.check_twin("26.05")
