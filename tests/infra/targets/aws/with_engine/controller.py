"""The controller as EC2 has it: its machine, and what must outlive that."""

from __future__ import annotations

from dataclasses import dataclass

from tests.infra.targets.aws.with_engine.cloud_stack import CloudStack


@dataclass(frozen=True)
class Controller:
    id: str
    address: str
    interface: str
    state: str
    """The volume with queue and accounts."""


def controller(stack: CloudStack) -> Controller:
    wanted = {
        "tag:muster.cluster": [stack.spec["name"]],
        "tag:muster.role": ["controller"],
        "instance-state-name": ["pending", "running"],
    }
    filters = [{"Name": name, "Values": values} for name, values in wanted.items()]
    found = stack.cloud.client("ec2").describe_instances(Filters=filters)["Reservations"]
    (machine,) = [one for reservation in found for one in reservation["Instances"]]
    volumes = {one["DeviceName"]: one["Ebs"]["VolumeId"] for one in machine["BlockDeviceMappings"]}
    (interface,) = machine["NetworkInterfaces"]
    return Controller(
        machine["InstanceId"], machine["PrivateIpAddress"], interface["NetworkInterfaceId"], volumes["/dev/sdf"]
    )


def end(stack: CloudStack, machine: Controller) -> None:
    ec2 = stack.cloud.client("ec2")
    ec2.terminate_instances(InstanceIds=[machine.id])
    ec2.get_waiter("instance_terminated").wait(InstanceIds=[machine.id])
