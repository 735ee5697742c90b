"""Replacing the controller's instance: address, name and state belong to resources that survive it."""

from __future__ import annotations

import pytest

from tests.infra.targets.aws.build.capture import STACKS, example, named

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
