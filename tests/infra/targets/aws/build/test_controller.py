"""Replacing the controller's instance: address, name and state belong to resources that survive it."""

from __future__ import annotations

import base64

import pytest

from tests.infra.targets.aws.build.capture import STACKS, capture, example, named, of_type
from tests.infra.targets.aws.specs import spec

TEMPLATE = "aws:ec2/launchTemplate:LaunchTemplate"
INSTANCE, ATTACHMENT = "aws:ec2/instance:Instance", "aws:ec2/volumeAttachment:VolumeAttachment"
MACHINE = f"muster:aws:Controller${INSTANCE}::controller"


@pytest.mark.parametrize("stack", STACKS)
def test_few_resources_depend_on_the_instance(stack: str) -> None:
    """Interface, volume, name, bundle and templates do not, so a new instance changes none of them."""
    dependents = {
        resource.type.rpartition(":")[2] for resource in example(stack) if MACHINE in resource.options["dependencies"]
    }
    assert dependents == {"VolumeAttachment", "AwsAccess", "AwsReported", "AwsReadyGate", "Nodes"}


@pytest.mark.parametrize("stack", STACKS)
def test_the_old_instance_is_deleted_before_the_new_one_is_created(stack: str) -> None:
    machine, attachment = named(example(stack), INSTANCE, "controller"), named(example(stack), ATTACHMENT, "state")
    assert machine.props["primaryNetworkInterface"] == {"networkInterfaceId": "NetworkInterface/controller"}
    assert (attachment.props["volumeId"], attachment.props["instanceId"]) == ("Volume/state", "Instance/controller")
    assert attachment.props["stopInstanceBeforeDetaching"] is True
    assert (machine.options["deleteBeforeReplace"], attachment.options["deleteBeforeReplace"]) == (True, True)


@pytest.mark.parametrize("stack", STACKS)
def test_new_images_and_bundles_do_not_replace_it_and_ec2_recovers_it(stack: str) -> None:
    machine = named(example(stack), INSTANCE, "controller")
    assert machine.options["ignoreChanges"] == ["ami", "userDataBase64"]
    assert machine.props["maintenanceOptions"] == {"autoRecovery": "default"}


def test_without_an_end_no_machine_ends_itself() -> None:
    machine = named(example("aws-g6-pair"), INSTANCE, "controller")
    assert machine.props["instanceInitiatedShutdownBehavior"] == "stop"
    assert "ends_at=''\n" in base64.b64decode(machine.props["userDataBase64"]).decode()


def test_with_an_end_every_machine_is_terminated_when_it_shuts_itself_down() -> None:
    resources = capture(spec(aws={"region": "us-east-1", "ends_at": "2030-01-31 18:00 UTC"}), "demo")
    machine, templates = named(resources, INSTANCE, "controller"), of_type(resources, TEMPLATE)
    assert templates
    behaviors = [resource.props["instanceInitiatedShutdownBehavior"] for resource in (machine, *templates)]
    assert set(behaviors) == {"terminate"}
    scripts = [machine.props["userDataBase64"], *(template.props["userData"] for template in templates)]
    assert all("ends_at=1896112800\n" in base64.b64decode(script).decode() for script in scripts)
