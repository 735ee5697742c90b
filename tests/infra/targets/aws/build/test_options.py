"""What the engine may do with a resource: what it must keep, what it must not touch, in which order it replaces."""

from __future__ import annotations

import json

import pytest

from infra.targets.registry import read_spec as read
from tests.infra.targets.aws.build.capture import ROOT, SECRETS, STACKS, Made, capture, example, named, of_type, strings

LUSTRE, EFS = "aws:fsx/lustreFileSystem:LustreFileSystem", "aws:efs/fileSystem:FileSystem"
LINK = "aws:fsx/dataRepositoryAssociation:DataRepositoryAssociation"
INSTANCE, TEMPLATE = "aws:ec2/instance:Instance", "aws:ec2/launchTemplate:LaunchTemplate"
PARAMETER, KEY = "aws:ssm/parameter:Parameter", "aws:kms/key:Key"


@pytest.mark.parametrize(
    ("kind", "name", "kept"), [(LUSTRE, "shared", True), (LINK, "shared", True), (EFS, "home", False)]
)
def test_storage_is_kept_exactly_where_the_spec_says_so(kind: str, name: str, kept: bool) -> None:
    options = named(example("aws-full"), kind, name).options
    assert (options["protect"], options["retainOnDelete"]) == (kept, kept)


def test_a_key_outlives_the_cluster_exactly_where_storage_does() -> None:
    kept = {stack: [one.options["retainOnDelete"] for one in of_type(example(stack), KEY)] for stack in STACKS}
    assert kept["aws-g6-pair"] == [False]
    assert kept["aws-p5-autoscaled"] == [True]
    assert kept["aws-full"] == []


@pytest.mark.parametrize("stack", STACKS)
def test_machines_that_stay_are_not_replaced_by_news(stack: str) -> None:
    for one in of_type(example(stack), INSTANCE):
        assert one.options["ignoreChanges"] == ["ami", "userDataBase64"]
        assert one.options["deleteBeforeReplace"] is True


@pytest.mark.parametrize("stack", STACKS)
def test_the_tags_of_a_disk_are_given_in_one_place(stack: str) -> None:
    """Tags for all volumes of a machine would be read from the state's volume, and written over its own; the cluster's
    own come from the provider, which takes them for a change where they are given again."""
    given = named(example(stack), "pulumi:providers:aws", "aws").props["defaultTags"]
    default = (json.loads(given) if isinstance(given, str) else given)["tags"]
    for one in of_type(example(stack), INSTANCE):
        assert "volumeTags" not in one.props
        assert one.props["rootBlockDevice"]["tags"] == one.props["tags"]
        assert not set(one.props["tags"]) & set(default)


def test_the_state_volume_is_taken_from_a_machine_that_stands_still() -> None:
    attached = named(example("aws-full"), "aws:ec2/volumeAttachment:VolumeAttachment", "state")
    assert attached.options["deleteBeforeReplace"] is True
    assert attached.props["stopInstanceBeforeDetaching"] is True


@pytest.mark.parametrize("stack", STACKS)
def test_old_bundles_stay_for_machines_that_name_them(stack: str) -> None:
    objects = {one.name: one.options for one in of_type(example(stack), "aws:s3/bucketObjectv2:BucketObjectv2")}
    assert objects["bundle"]["retainOnDelete"] is True
    assert objects["fleet.json"]["retainOnDelete"] is False


@pytest.mark.parametrize("stack", STACKS)
def test_everything_waits_for_the_guard(stack: str) -> None:
    """Directly, or through the provider that makes it, which does."""
    made = example(stack)
    guarded = [one for one in made if any(urn.endswith("::guard") for urn in one.options["dependencies"])]
    assert "aws" in [one.name for one in guarded if one.type == "pulumi:providers:aws"]
    free = [one.label for one in made if one.custom and not one.provider and one not in guarded]
    # These follow from what they are given: machines that exist.
    after = {"AwsAccess", "AwsReadyGate", "AwsReported", "Nodes", "ChangeGuard"}
    assert {label.rpartition(":")[2].split()[0] for label in free} <= after


@pytest.mark.parametrize("stack", STACKS)
def test_every_resource_has_the_tags_of_its_cluster(stack: str) -> None:
    provider = named(example(stack), "pulumi:providers:aws", "aws")
    tags = json.loads(provider.props["defaultTags"])["tags"]
    spec = read(ROOT / "stacks" / f"Pulumi.{stack}.yaml")
    assert tags == {**spec.tags, "muster.cluster": spec.name, "muster.stack": stack}
    for one in of_type(example(stack), TEMPLATE):
        for wanted in one.props["tagSpecifications"]:
            assert tags.items() <= wanted["tags"].items()
    made_by = {one.provider.split("::")[2].rpartition("$")[2] for one in example(stack) if one.type.startswith("aws:")}
    assert made_by == {"pulumi:providers:aws"}


@pytest.mark.parametrize("stack", STACKS)
def test_secrets_are_secret_and_in_no_other_text(stack: str) -> None:
    made = example(stack)
    for one in of_type(made, PARAMETER):
        assert (one.props["type"], "value" in one.secrets) == ("SecureString", True), one.name
    assert [leak for one in made for leak in _leaks(one)] == []


def _leaks(one: Made) -> list[str]:
    """Where a secret can be read by who sees the state, the console or the machine's user data."""
    hidden = {*one.secrets, *one.options["additionalSecretOutputs"]}
    open_ = {key: value for key, value in one.props.items() if key not in hidden}
    return [f"{one.label}: {name}" for text in strings(open_) for name, secret in SECRETS.items() if secret in text]


def test_a_secret_in_plain_text_would_be_found() -> None:
    one = named(example("aws-full"), TEMPLATE, "burst-spot")
    planted = Made(**{**vars(one), "props": {**one.props, "userData": f"key={SECRETS['slurm_key']}"}})
    assert _leaks(planted) == [f"{one.label}: slurm_key"]


def test_without_zones_the_one_that_aws_named_is_used() -> None:
    made = example("aws-g6-pair")
    assert named(made, "aws:ec2/subnet:Subnet", "private-auto").props["availabilityZone"] == "us-east-1d"
    fleet = json.loads(named(made, "aws:s3/bucketObjectv2:BucketObjectv2", "fleet.json").props["content"])
    assert {option["zone"] for group in fleet["groups"] for option in group["options"]} == {"us-east-1d"}


def test_nothing_is_made_in_an_existing_network_but_rules() -> None:
    kinds = {one.type.split("/")[0] + "/" + one.type.rpartition(":")[2] for one in example("aws-existing-vpc")}
    assert not kinds & {"aws:ec2/Vpc", "aws:ec2/Subnet", "aws:ec2/NatGateway", "aws:ec2/VpcEndpoint", "aws:ec2/FlowLog"}


def test_no_egress_leaves_no_way_out() -> None:
    spec = read(ROOT / "stacks" / "Pulumi.aws-g6-pair.yaml")
    closed = spec.model_copy(update={"network": spec.network.model_copy(update={"egress": False})})
    made = capture(closed, "aws-g6-pair")
    assert (
        of_type(made, "aws:ec2/natGateway:NatGateway", "aws:ec2/internetGateway:InternetGateway", "aws:ec2/eip:Eip")
        == []
    )
    assert "ec2" in [one.name for one in of_type(made, "aws:ec2/vpcEndpoint:VpcEndpoint")]
