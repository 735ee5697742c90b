"""The controller's machine may go and come again: what nodes know of it, and what it knew, belongs to none of them."""

from __future__ import annotations

import pytest

from tests.infra.targets.aws.build.capture import STACKS, example, named

INSTANCE, ATTACHMENT = "aws:ec2/instance:Instance", "aws:ec2/volumeAttachment:VolumeAttachment"
MACHINE = f"muster:aws:Controller${INSTANCE}::controller"


@pytest.mark.parametrize("stack", STACKS)
def test_only_what_must_know_the_machine_needs_it(stack: str) -> None:
    """Interface, volume, name, bundle and templates do not: another machine changes none of them."""
    need = {
        resource.type.rpartition(":")[2] for resource in example(stack) if MACHINE in resource.options["dependencies"]
    }
    assert need == {"VolumeAttachment", "AwsAccess", "AwsReported", "AwsReadyGate", "Nodes"}


@pytest.mark.parametrize("stack", STACKS)
def test_the_old_machine_is_gone_before_the_new_one_has_its_interface_and_volume(stack: str) -> None:
    machine, attachment = named(example(stack), INSTANCE, "controller"), named(example(stack), ATTACHMENT, "state")
    assert machine.props["primaryNetworkInterface"] == {"networkInterfaceId": "NetworkInterface/controller"}
    assert (attachment.props["volumeId"], attachment.props["instanceId"]) == ("Volume/state", "Instance/controller")
    assert attachment.props["stopInstanceBeforeDetaching"] is True
    assert (machine.options["deleteBeforeReplace"], attachment.options["deleteBeforeReplace"]) == (True, True)


@pytest.mark.parametrize("stack", STACKS)
def test_a_new_image_or_bundle_is_no_reason_and_broken_hardware_is_left_by_itself(stack: str) -> None:
    machine = named(example(stack), INSTANCE, "controller")
    assert machine.options["ignoreChanges"] == ["ami", "userDataBase64"]
    assert machine.props["maintenanceOptions"] == {"autoRecovery": "default"}
