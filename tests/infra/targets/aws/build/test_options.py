"""What the engine may do with a resource: what it must keep, what it must not touch, in which order it replaces."""

from __future__ import annotations

import json

import pytest

from infra.targets.registry import read_spec as read
from tests.infra.targets.aws.build.capture import (
    ROOT,
    SECRETS,
    STACKS,
    CapturedResource,
    capture,
    example,
    named,
    of_type,
    strings,
)

LUSTRE, EFS = "aws:fsx/lustreFileSystem:LustreFileSystem", "aws:efs/fileSystem:FileSystem"
LINK = "aws:fsx/dataRepositoryAssociation:DataRepositoryAssociation"
INSTANCE, TEMPLATE = "aws:ec2/instance:Instance", "aws:ec2/launchTemplate:LaunchTemplate"
PARAMETER, KEY = "aws:ssm/parameter:Parameter", "aws:kms/key:Key"


@pytest.mark.parametrize(
    ("kind", "name", "retained"), [(LUSTRE, "shared", True), (LINK, "shared", True), (EFS, "home", False)]
)
def test_storage_is_kept_exactly_where_the_spec_says_so(kind: str, name: str, retained: bool) -> None:
    options = named(example("aws-full"), kind, name).options
    assert (options["protect"], options["retainOnDelete"]) == (retained, retained)


def test_a_key_outlives_the_cluster_exactly_where_storage_does() -> None:
    retained = {
        stack: [resource.options["retainOnDelete"] for resource in of_type(example(stack), KEY)] for stack in STACKS
    }
    assert retained["aws-g6-pair"] == [False]
    assert retained["aws-p5-autoscaled"] == [True]
    assert retained["aws-full"] == []


@pytest.mark.parametrize("stack", STACKS)
def test_machines_that_stay_are_not_replaced_by_news(stack: str) -> None:
    for resource in of_type(example(stack), INSTANCE):
        assert resource.options["ignoreChanges"] == ["ami", "userDataBase64"]
        assert resource.options["deleteBeforeReplace"] is True


@pytest.mark.parametrize("stack", STACKS)
def test_the_tags_of_a_disk_are_given_in_one_place(stack: str) -> None:
    """Tags for all volumes of a machine would be read from the state's volume, and written over its own; the cluster's
    own come from the provider, which takes them for a change where they are given again."""
    given = named(example(stack), "pulumi:providers:aws", "aws").props["defaultTags"]
    default = (json.loads(given) if isinstance(given, str) else given)["tags"]
    for resource in of_type(example(stack), INSTANCE):
        assert "volumeTags" not in resource.props
        assert resource.props["rootBlockDevice"]["tags"] == resource.props["tags"]
        assert not set(resource.props["tags"]) & set(default)


def test_the_state_volume_is_taken_from_a_machine_that_stands_still() -> None:
    attached = named(example("aws-full"), "aws:ec2/volumeAttachment:VolumeAttachment", "state")
    assert attached.options["deleteBeforeReplace"] is True
    assert attached.props["stopInstanceBeforeDetaching"] is True


@pytest.mark.parametrize("stack", STACKS)
def test_old_bundles_stay_for_machines_that_name_them(stack: str) -> None:
    objects = {
        resource.name: resource.options for resource in of_type(example(stack), "aws:s3/bucketObjectv2:BucketObjectv2")
    }
    assert objects["bundle"]["retainOnDelete"] is True
    assert objects["fleet.json"]["retainOnDelete"] is False


@pytest.mark.parametrize("stack", STACKS)
def test_everything_waits_for_the_guard(stack: str) -> None:
    """Directly, or through the provider that makes it, which does."""
    resources = example(stack)
    guarded = [
        resource for resource in resources if any(urn.endswith("::guard") for urn in resource.options["dependencies"])
    ]
    assert "aws" in [resource.name for resource in guarded if resource.type == "pulumi:providers:aws"]
    free = [
        resource.label
        for resource in resources
        if resource.custom and not resource.provider and resource not in guarded
    ]
    # These follow from what they are given: machines that exist.
    after = {"AwsAccess", "AwsReadyGate", "AwsReported", "Nodes", "ChangeGuard"}
    assert {label.rpartition(":")[2].split()[0] for label in free} <= after


@pytest.mark.parametrize("stack", STACKS)
def test_every_resource_has_the_tags_of_its_cluster(stack: str) -> None:
    provider = named(example(stack), "pulumi:providers:aws", "aws")
    tags = json.loads(provider.props["defaultTags"])["tags"]
    spec = read(ROOT / "stacks" / f"Pulumi.{stack}.yaml")
    assert tags == {**spec.tags, "muster.cluster": spec.name, "muster.stack": stack}
    for resource in of_type(example(stack), TEMPLATE):
        for specification in resource.props["tagSpecifications"]:
            assert tags.items() <= specification["tags"].items()
    made_by = {
        resource.provider.split("::")[2].rpartition("$")[2]
        for resource in example(stack)
        if resource.type.startswith("aws:")
    }
    assert made_by == {"pulumi:providers:aws"}


@pytest.mark.parametrize("stack", STACKS)
def test_secrets_are_secret_and_in_no_other_text(stack: str) -> None:
    resources = example(stack)
    for resource in of_type(resources, PARAMETER):
        assert (resource.props["type"], "value" in resource.secrets) == ("SecureString", True), resource.name
    assert [leak for resource in resources for leak in _leaks(resource)] == []


def _leaks(resource: CapturedResource) -> list[str]:
    """Where a secret can be read by who sees the state, the console or the machine's user data."""
    hidden = {*resource.secrets, *resource.options["additionalSecretOutputs"]}
    open_ = {key: value for key, value in resource.props.items() if key not in hidden}
    return [
        f"{resource.label}: {name}" for text in strings(open_) for name, secret in SECRETS.items() if secret in text
    ]


def test_a_secret_in_plain_text_would_be_found() -> None:
    resource = named(example("aws-full"), TEMPLATE, "burst-spot")
    planted = CapturedResource(
        **{**vars(resource), "props": {**resource.props, "userData": f"key={SECRETS['slurm_key']}"}}
    )
    assert _leaks(planted) == [f"{resource.label}: slurm_key"]


def test_without_zones_the_one_that_aws_named_is_used() -> None:
    resources = example("aws-g6-pair")
    assert named(resources, "aws:ec2/subnet:Subnet", "private-auto").props["availabilityZone"] == "us-east-1d"
    fleet = json.loads(named(resources, "aws:s3/bucketObjectv2:BucketObjectv2", "fleet.json").props["content"])
    assert {option["zone"] for group in fleet["groups"] for option in group["options"]} == {"us-east-1d"}


def test_nothing_is_made_in_an_existing_network_but_rules() -> None:
    kinds = {
        resource.type.split("/")[0] + "/" + resource.type.rpartition(":")[2] for resource in example("aws-existing-vpc")
    }
    assert not kinds & {"aws:ec2/Vpc", "aws:ec2/Subnet", "aws:ec2/NatGateway", "aws:ec2/VpcEndpoint", "aws:ec2/FlowLog"}


def test_no_egress_leaves_no_way_out() -> None:
    spec = read(ROOT / "stacks" / "Pulumi.aws-g6-pair.yaml")
    closed = spec.model_copy(update={"network": spec.network.model_copy(update={"egress": False})})
    resources = capture(closed, "aws-g6-pair")
    assert (
        of_type(
            resources, "aws:ec2/natGateway:NatGateway", "aws:ec2/internetGateway:InternetGateway", "aws:ec2/eip:Eip"
        )
        == []
    )
    assert "ec2" in [resource.name for resource in of_type(resources, "aws:ec2/vpcEndpoint:VpcEndpoint")]
