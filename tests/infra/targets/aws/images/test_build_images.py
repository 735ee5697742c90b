"""Builds of images against moto: what is launched, tagged, tested and recorded, and that nothing paid is left."""

from __future__ import annotations

import gzip
import json
from base64 import b64decode
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import boto3
import pytest

from bootstrap.bundle import Bundle
from cluster.spec import ClusterSpec
from infra.home import Home, StackHome
from infra.resources.error import ResourceError
from infra.targets.aws import names
from infra.targets.aws.fallback_images import store_fallbacks
from infra.targets.aws.images import build_images
from infra.targets.aws.images.baked_images import list_cluster_images, read_region, remove_cluster_image
from infra.targets.aws.images.builder_machine import BuilderMachine, choose_root_gb
from infra.targets.aws.images.planned_images import plan_images
from infra.targets.aws.launcher.fleet import Fleet
from infra.targets.aws.leftovers.search import find_leftovers
from infra.targets.aws.node import parameters
from infra.targets.aws.plan.machines import FIXED_ROOT_GB
from infra.targets.aws.preflight.account import Account, Identity
from infra.targets.aws.preflight.images import check_images
from infra.targets.aws.preflight.subject import Subject
from infra.targets.aws.rehearse import moto_gaps
from infra.targets.aws.rehearse.moto_server import ACCOUNT, REGION
from infra.targets.aws.target import AwsTarget
from infra.targets.target import Deployment
from muster.commands.screen import get_quiet_console
from tests.infra.targets.aws.cluster_ends import StoppedClock, end_in_minutes
from tests.infra.targets.aws.specs import group, spec
from tests.moto_server import Moto

SPEC = spec()
HERE = Deployment("demo", "s", REGION)
BUCKET = names.bucket("demo", ACCOUNT, REGION)


class Machine(BuilderMachine):
    """A builder whose machine reports as soon as someone waits for it."""

    reports: tuple[str, ...] = ("working", "ready")
    fails_at = ""
    programs: list[str]
    packages: Mapping[str, str] = {"slurm-smd": "26.05.5-1"}

    def launch(self, image: Mapping[str, Any], instance_type: str, user_data: str) -> None:
        super().launch(image, instance_type, user_data)
        self.program = next(line for line in user_data.splitlines() if line.startswith("program="))
        self.programs.append(self.program)
        self.left = list(self.reports)
        arn = f"arn:aws:ec2:{REGION}:{ACCOUNT}:instance/{self.id}"
        name = parameters.builder(self.purpose)
        forged = parameters.stored(name, "arn:aws:ec2:x:1:instance/i-other", f"x:instance/{self.id}/packages.json.gz")
        for key, packages in (
            (parameters.stored(name, arn, "packages.json.gz"), self.packages),
            (forged, {"rootkit": "1"}),
        ):
            body = gzip.compress(json.dumps(packages).encode())
            self.api._client("s3").put_object(Bucket=self.site.bucket, Key=key, Body=body)
        self.sleep = lambda _seconds: self._report()

    def _report(self) -> None:
        if not self.left:
            return
        state = "failed" if self.fails_at and self.fails_at in self.program else self.left.pop(0)
        report = {"instance": self.id, "state": state, "step": "slurm", "line": "no space left", "bundle": "b"}
        ssm = self.api._client("ssm")
        ssm.put_parameter(Name=self.parameter, Value=json.dumps(report), Type="String", Overwrite=True)


@dataclass
class Notes:
    """A console that keeps what a build says."""

    lines: list[str] = field(default_factory=list)

    def say(self, text: str) -> None:
        self.lines.append(text)

    def status(self, text: str) -> AbstractContextManager[Any]:
        return get_quiet_console().status(text)


@pytest.fixture
def home(aws: Moto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    """Return a home, with a cluster in the account that is up."""
    moto_gaps.apply()
    for image in plan_images(SPEC):
        moto_gaps.publish_image(image.parameter)
    ec2 = aws.client("ec2")
    vpc = ec2.create_vpc(CidrBlock="10.0.0.0/16")["Vpc"]["VpcId"]
    subnet = ec2.create_subnet(VpcId=vpc, CidrBlock="10.0.1.0/24")["Subnet"]["SubnetId"]
    group = ec2.create_security_group(GroupName="n", Description="n", VpcId=vpc)["GroupId"]
    option = {
        "purchase": "on-demand", "zone": f"{REGION}a", "subnet_id": subnet, "instance_type": "p5.48xlarge",
        "launch_template_id": "lt-1", "launch_template_version": "1",
    }  # fmt: skip
    fleet = Fleet.model_validate({
        "cluster": "demo", "stack": "s", "region": REGION, "hosted_zone_id": "Z", "domain": "d", "bundle": "b",
        "tags": {}, "groups": [{"name": "gpu", "options": [option], "security_groups": [group]}],
    })  # fmt: skip
    aws.client("iam").create_instance_profile(InstanceProfileName=names.prefixed("demo", "compute"))
    s3 = aws.client("s3")
    s3.create_bucket(Bucket=BUCKET)
    s3.put_object(Bucket=BUCKET, Key=parameters.FLEET, Body=fleet.model_dump_json().encode())
    monkeypatch.setattr(build_images, "BuilderMachine", Machine)
    monkeypatch.setattr(build_images.ImageBuilds, "_pack", lambda _self, _image: Bundle("0123456789abcdef", b"tar"))
    monkeypatch.setattr(Machine, "programs", [], raising=False)
    monkeypatch.setattr(Machine, "fails_at", "")
    monkeypatch.setenv("MUSTER_HOME", str(tmp_path))
    return Home(repo=tmp_path, root=tmp_path, cache=tmp_path, stacks=tmp_path)


def list_instances(aws: Moto) -> list[dict[str, Any]]:
    reservations = aws.client("ec2").describe_instances()["Reservations"]
    return [row for entry in reservations for row in entry["Instances"]]


def list_alive(aws: Moto) -> list[str]:
    return [row["InstanceId"] for row in list_instances(aws) if row["State"]["Name"] != "terminated"]


def list_own(aws: Moto) -> tuple[list[Any], list[Any]]:
    ec2 = aws.client("ec2")
    filters = [{"Name": "tag:muster.cluster", "Values": ["demo"]}]
    images = ec2.describe_images(Owners=["self"], Filters=filters)["Images"]
    return images, ec2.describe_snapshots(OwnerIds=["self"], Filters=filters)["Snapshots"]


def build(home: Home, built: ClusterSpec = SPEC) -> dict[str, Any]:
    return dict(build_images.build_images(built, home, HERE, get_quiet_console()))


def test_images_are_built_tested_tagged_and_recorded(home: Home, aws: Moto) -> None:
    built = build(home)
    assert sorted(built) == ["ami", "plain_ami"]
    assert Machine.programs == ["program=bake", "program='bake --check'"] * 2
    assert list_alive(aws) == []
    images, _ = list_own(aws)
    tags = {tag["Key"]: tag["Value"] for tag in next(i for i in images if i["ImageId"] == built["ami"].id)["Tags"]}
    assert (tags["muster.image"], tags["muster.slurm"], tags["muster.roles"]) == ("gpu", "26.05", "compute")
    assert tags["muster.source"].startswith("/aws/service/deeplearning")
    assert tags["muster.base"].startswith("ami-")
    assert tags["muster.keep"] == "true"
    assert "muster.lustre" not in tags
    record = json.loads((home.images / f"{built['ami'].id}.json").read_text())
    assert record["packages"] == {"slurm-smd": "26.05.5-1"}
    assert read_region(home, built["ami"].id) == REGION
    assert {image.id for image in list_cluster_images(HERE)} == {image.id for image in built.values()}


@pytest.mark.usefixtures("aws")
def test_garbage_in_the_report_does_not_stop_a_build(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Machine, "reports", ("no such state", "ready"))
    assert sorted(build(home)) == ["ami", "plain_ami"]


def test_the_machine_is_no_node_and_cannot_outlive_the_build(home: Home, aws: Moto) -> None:
    build(home)
    first = list_instances(aws)[0]
    tags = {tag["Key"]: tag["Value"] for tag in first["Tags"]}
    assert (tags["muster.cluster"], tags["muster.role"]) == ("demo", "image")
    assert "muster.node" not in tags
    assert "muster.group" not in tags
    ec2 = aws.client("ec2")
    attribute = ec2.describe_instance_attribute(InstanceId=first["InstanceId"], Attribute="userData")["UserData"]
    script = b64decode(attribute["Value"]).decode()
    assert "program=bake" in script
    assert "name=image-plain" in script


def test_the_machine_does_not_outlive_the_end_of_its_cluster(home: Home, aws: Moto) -> None:
    build(home, spec(aws={"region": REGION, "ends_at": "2030-01-31 18:00 UTC"}))
    ec2 = aws.client("ec2")
    ids = [row["InstanceId"] for row in list_instances(aws)]
    attributes = [ec2.describe_instance_attribute(InstanceId=id_, Attribute="userData")["UserData"] for id_ in ids]
    scripts = [b64decode(attribute["Value"]).decode() for attribute in attributes]
    assert len(scripts) == 4
    assert ["ends_at=1896112800\n" in script for script in scripts] == [True] * 4


def test_no_image_is_built_shortly_before_the_end_of_its_cluster(
    home: Home, aws: Moto, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build_images, "datetime", StoppedClock)
    end = end_in_minutes(31)
    with pytest.raises(ResourceError) as caught:
        build(home, spec(aws={"region": REGION, "ends_at": end}))
    assert str(caught.value) == (
        f"aws.ends_at: '{end}' is 30 minutes ahead, and machines that build images end then, too; allowed: an hour or "
        "more. Fix: build images in a cluster with a later end, or with none."
    )
    assert list_instances(aws) == []


@pytest.mark.parametrize(("base_gb", "disk_gb"), [(8, 30), (75, 75)])
def test_the_disk_has_room_for_what_is_installed(base_gb: int, disk_gb: int) -> None:
    mappings = [{"DeviceName": "/dev/sda1", "Ebs": {"VolumeSize": base_gb}}]
    assert choose_root_gb({"RootDeviceName": "/dev/sda1", "BlockDeviceMappings": mappings}) == disk_gb
    assert disk_gb <= FIXED_ROOT_GB


def test_teardown_shows_images_as_kept(home: Home) -> None:
    built = build(home)
    keep_reasons = {
        left.name: left.keep_reason for left in find_leftovers("demo", REGION).resources if left.kind == "machine image"
    }
    assert keep_reasons == {image.id: "keep: true" for image in built.values()}


def test_an_image_is_rebuilt_from_the_newest_version_of_its_base(home: Home, aws: Moto) -> None:
    built = build(home)["ami"]
    again = spec(aws={"region": REGION, "ami": built.id})
    second = build_images.build_images(again, home, HERE, get_quiet_console(), ("gpu",))["ami"]
    assert second.base == built.base
    assert second.id != built.id


def test_the_own_image_of_a_group_is_replaced_only_if_it_was_built_here(home: Home, aws: Moto) -> None:
    images = aws.client("ec2").describe_images(Owners=["amazon"])["Images"]
    assert sorted(build(home, spec(groups=group(image=images[0]["ImageId"])))) == ["plain_ami"]
    built_here = build(home)["ami"].id
    assert sorted(build(home, spec(groups=group(image=built_here)))) == ["ami", "plain_ami"]


def test_built_images_pass_the_pre_flight_of_their_cluster(home: Home) -> None:
    named = {field: image.id for field, image in build(home).items()}
    account = Account(boto3.Session(), REGION)
    for software, codes in (({"slurm": "26.05"}, []), ({"slurm": "24.11"}, ["image_slurm", "image_slurm"])):
        subject = Subject(spec(aws={"region": REGION, **named}, software=software), account, Identity(ACCOUNT, ""))
        assert [issue.code for issue in check_images(subject)] == codes


def test_an_upgrade_is_refused_while_nodes_start_from_images_with_the_old_release(home: Home) -> None:
    target = AwsTarget()
    old = {"slurm": "24.11"}
    image = build(home, spec(aws={"region": REGION}, software=old))["ami"].id
    named = spec(aws={"region": REGION, "ami": image}, software=old)
    stack = home.stack("s")
    target.check_release(named, stack, "24.11")
    target.check_release(SPEC, stack, "26.05")
    with pytest.raises(
        ResourceError, match=r"aws\.ami: 'ami-\w+' has Slurm 24\.11, so new nodes would not have 26\.05"
    ):
        target.check_release(named, stack, "26.05")
    of_a_group = spec(groups=group(image=image))
    with pytest.raises(ResourceError, match=r"groups\.gpu\.image: 'ami-\w+' has Slurm 24\.11"):
        target.check_release(of_a_group, stack, "26.05")


@pytest.mark.parametrize("source", ["file", "state"])
def test_an_upgrade_is_refused_while_nodes_start_from_images_that_up_chose(home: Home, source: str) -> None:
    old = {"slurm": "24.11"}
    image = build(home, spec(aws={"region": REGION}, software=old))["ami"].id
    stack, chosen = home.stack("s"), {"gpu-x86_64": image}
    if source == "file":
        store_fallbacks(stack, chosen)
    else:
        write_state(stack, chosen)
    text = r"aws\.ami: not set, so nodes start from 'ami-\w+' has Slurm 24\.11.*`aws\.ami` and `aws\.plain_ami`"
    with pytest.raises(ResourceError, match=text):
        AwsTarget().check_release(spec(software=old), stack, "26.05")
    AwsTarget().check_release(spec(software=old), stack, "24.11")
    # A spec that names its images does not start from the ones that were chosen.
    AwsTarget().check_release(spec(aws={"region": REGION, "ami": "ami-1"}, software=old), stack, "26.05")


def write_state(stack: StackHome, images: Mapping[str, str]) -> None:
    resources = [
        {"type": "pulumi:providers:aws", "inputs": {"region": REGION}},
        {"type": "pulumi-python:muster:AwsResolved", "outputs": {"account": ACCOUNT, "images": images}},
    ]
    stack.state.parent.mkdir(parents=True)
    stack.state.write_text(json.dumps({"checkpoint": {"latest": {"resources": resources}}}))


def test_an_image_in_use_is_not_removed(home: Home, aws: Moto) -> None:
    image = build(home)["ami"].id
    ec2 = aws.client("ec2")
    tags = [{"ResourceType": "launch-template", "Tags": [{"Key": "muster.cluster", "Value": "other"}]}]
    template = ec2.create_launch_template(
        LaunchTemplateName="t", LaunchTemplateData={"ImageId": image}, TagSpecifications=tags
    )["LaunchTemplate"]["LaunchTemplateId"]
    for number in range(20):
        ec2.create_launch_template(LaunchTemplateName=f"other-{number}", LaunchTemplateData={"ImageId": "ami-1"})
    aws.calls.clear()
    with pytest.raises(ResourceError, match=f"'{image}' is in use by launch template t"):
        remove_cluster_image(HERE, image)
    assert aws.count()["DescribeLaunchTemplateVersions"] == 1
    ec2.create_launch_template_version(LaunchTemplateId=template, LaunchTemplateData={"ImageId": "ami-1"})
    (machine,) = ec2.run_instances(ImageId=image, MinCount=1, MaxCount=1)["Instances"]
    with pytest.raises(ResourceError, match=f"is in use by machine {machine['InstanceId']}"):
        remove_cluster_image(HERE, image)
    ec2.terminate_instances(InstanceIds=[machine["InstanceId"]])
    remove_cluster_image(HERE, image)
    assert image not in [raw["ImageId"] for raw in list_own(aws)[0]]


def test_images_are_removed_with_their_snapshots(home: Home, aws: Moto) -> None:
    built = build(home)
    for image in built.values():
        remove_cluster_image(HERE, image.id)
    assert list_own(aws) == ([], [])
    with pytest.raises(ResourceError, match="'ami-1' is no image of cluster demo in us-east-1"):
        remove_cluster_image(HERE, "ami-1")


def test_a_cluster_that_is_not_up_has_nowhere_to_build(home: Home, aws: Moto) -> None:
    with pytest.raises(ResourceError, match="cluster other is not up"):
        build_images.build_images(SPEC, home, Deployment("other", "s", REGION), get_quiet_console())
