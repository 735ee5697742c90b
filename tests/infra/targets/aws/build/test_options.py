"""Resource options: what the engine keeps, ignores, and replaces in which order; secrets and tags."""

from __future__ import annotations

import json

import pytest

from infra.targets.registry import read_spec as read
from policy.resource_rules import strings
from tests.infra.targets.aws.build.capture import (
    ROOT,
    SECRETS,
    STACKS,
    CapturedResource,
    capture,
    example,
    named,
    of_type,
)

LUSTRE, EFS = "aws:fsx/lustreFileSystem:LustreFileSystem", "aws:efs/fileSystem:FileSystem"
LINK = "aws:fsx/dataRepositoryAssociation:DataRepositoryAssociation"
INSTANCE, TEMPLATE = "aws:ec2/instance:Instance", "aws:ec2/launchTemplate:LaunchTemplate"
PARAMETER, KEY = "aws:ssm/parameter:Parameter", "aws:kms/key:Key"


@pytest.mark.parametrize(
    ("kind", "name", "retained"), [(LUSTRE, "shared", True), (LINK, "shared", True), (EFS, "home", False)]
)
def test_storage_is_retained_only_with_keep(kind: str, name: str, retained: bool) -> None:
    options = named(example("aws-full"), kind, name).options
    assert (options["protect"], options["retainOnDelete"]) == (retained, retained)


def test_the_key_is_retained_only_with_storage() -> None:
    retained = {
        stack: [resource.options["retainOnDelete"] for resource in of_type(example(stack), KEY)] for stack in STACKS
    }
    assert retained["aws-g6-pair"] == [False]
    assert retained["aws-p5-autoscaled"] == [True]
    assert retained["aws-full"] == []


@pytest.mark.parametrize("stack", STACKS)
def test_new_images_and_bundles_do_not_replace_permanent_machines(stack: str) -> None:
    for resource in of_type(example(stack), INSTANCE):
        assert resource.options["ignoreChanges"] == ["ami", "userDataBase64"]
        assert resource.options["deleteBeforeReplace"] is True


@pytest.mark.parametrize("stack", STACKS)
def test_disk_tags_are_set_only_on_the_root_disk(stack: str) -> None:
    """The property `volumeTags` would overwrite the tags of the state volume.

    The cluster's tags come from the provider, which reports a change if a resource sets them again.
    """
    setting = named(example(stack), "pulumi:providers:aws", "aws").props["defaultTags"]
    default = (json.loads(setting) if isinstance(setting, str) else setting)["tags"]
    for resource in of_type(example(stack), INSTANCE):
        assert "volumeTags" not in resource.props
        assert resource.props["rootBlockDevice"]["tags"] == resource.props["tags"]
        assert not set(resource.props["tags"]) & set(default)


def test_the_state_volume_is_detached_from_a_stopped_machine() -> None:
    attached = named(example("aws-full"), "aws:ec2/volumeAttachment:VolumeAttachment", "state")
    assert attached.options["deleteBeforeReplace"] is True
    assert attached.props["stopInstanceBeforeDetaching"] is True


@pytest.mark.parametrize("stack", STACKS)
def test_old_bundles_are_retained_for_machines_that_use_them(stack: str) -> None:
    objects = {
        resource.name: resource.options for resource in of_type(example(stack), "aws:s3/bucketObjectv2:BucketObjectv2")
    }
    assert objects["bundle"]["retainOnDelete"] is True
    assert objects["fleet.json"]["retainOnDelete"] is False


@pytest.mark.parametrize("stack", STACKS)
def test_everything_waits_for_the_guard(stack: str) -> None:
    """They depend on it directly, or through their provider."""
    resources = example(stack)
    guarded = [
        resource for resource in resources if any(urn.endswith("::guard") for urn in resource.options["dependencies"])
    ]
    assert "aws" in [resource.name for resource in guarded if resource.type == "pulumi:providers:aws"]
    unguarded = [
        resource.label
        for resource in resources
        if resource.custom and not resource.provider and resource not in guarded
    ]
    # These depend on existing machines, which are created after the guard.
    dependents = {"AwsAccess", "AwsReadyGate", "AwsReported", "Nodes", "ChangeGuard"}
    assert {label.rpartition(":")[2].split()[0] for label in unguarded} <= dependents


@pytest.mark.parametrize("stack", STACKS)
def test_every_resource_has_the_tags_of_its_cluster(stack: str) -> None:
    provider = named(example(stack), "pulumi:providers:aws", "aws")
    tags = json.loads(provider.props["defaultTags"])["tags"]
    spec = read(ROOT / "stacks" / f"Pulumi.{stack}.yaml")
    assert tags == {**spec.tags, "muster.cluster": spec.name, "muster.stack": stack}
    for resource in of_type(example(stack), TEMPLATE):
        for specification in resource.props["tagSpecifications"]:
            assert tags.items() <= specification["tags"].items()
    providers = {
        resource.provider.split("::")[2].rpartition("$")[2]
        for resource in example(stack)
        if resource.type.startswith("aws:")
    }
    assert providers == {"pulumi:providers:aws"}


@pytest.mark.parametrize("stack", STACKS)
def test_secrets_are_marked_and_appear_nowhere_else(stack: str) -> None:
    resources = example(stack)
    for resource in of_type(resources, PARAMETER):
        assert (resource.props["type"], "value" in resource.secrets) == ("SecureString", True), resource.name
    assert [leak for resource in resources for leak in _leaks(resource)] == []


def _leaks(resource: CapturedResource) -> list[str]:
    """Return the places where a secret is readable in the state, the console or user data."""
    hidden = {*resource.secrets, *resource.options["additionalSecretOutputs"]}
    visible = {key: value for key, value in resource.props.items() if key not in hidden}
    return [
        f"{resource.label}: {name}" for text in strings(visible) for name, secret in SECRETS.items() if secret in text
    ]


def test_a_secret_in_plain_text_is_detected() -> None:
    resource = named(example("aws-full"), TEMPLATE, "burst-spot")
    planted = CapturedResource(
        **{**vars(resource), "props": {**resource.props, "userData": f"key={SECRETS['slurm_key']}"}}
    )
    assert _leaks(planted) == [f"{resource.label}: slurm_key"]


def test_without_zones_the_resolved_zone_is_used() -> None:
    resources = example("aws-g6-pair")
    assert named(resources, "aws:ec2/subnet:Subnet", "private-auto").props["availabilityZone"] == "us-east-1d"
    fleet = json.loads(named(resources, "aws:s3/bucketObjectv2:BucketObjectv2", "fleet.json").props["content"])
    assert {option["zone"] for group in fleet["groups"] for option in group["options"]} == {"us-east-1d"}


def test_an_existing_network_gets_only_rules() -> None:
    kinds = {
        resource.type.split("/")[0] + "/" + resource.type.rpartition(":")[2] for resource in example("aws-existing-vpc")
    }
    assert not kinds & {"aws:ec2/Vpc", "aws:ec2/Subnet", "aws:ec2/NatGateway", "aws:ec2/VpcEndpoint", "aws:ec2/FlowLog"}


def test_without_egress_there_is_no_gateway() -> None:
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
