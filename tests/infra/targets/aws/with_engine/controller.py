"""The controller in EC2: its instance, and the resources that must outlive the instance."""

from __future__ import annotations

from dataclasses import dataclass

from tests.infra.targets.aws.with_engine.cloud_stack import CloudStack


@dataclass(frozen=True)
class Controller:
    """The controller's instance, with its address, network interface and state volume."""

    id: str
    address: str
    interface: str
    state: str
    """Id of the volume with the job queue and accounting."""


def find_controller(stack: CloudStack) -> Controller:
    criteria = {
        "tag:muster.cluster": [stack.spec["name"]],
        "tag:muster.role": ["controller"],
        "instance-state-name": ["pending", "running"],
    }
    filters = [{"Name": name, "Values": values} for name, values in criteria.items()]
    reservations = stack.cloud.client("ec2").describe_instances(Filters=filters)["Reservations"]
    (machine,) = [instance for reservation in reservations for instance in reservation["Instances"]]
    volumes = {disk["DeviceName"]: disk["Ebs"]["VolumeId"] for disk in machine["BlockDeviceMappings"]}
    (interface,) = machine["NetworkInterfaces"]
    return Controller(
        machine["InstanceId"], machine["PrivateIpAddress"], interface["NetworkInterfaceId"], volumes["/dev/sdf"]
    )


def terminate(stack: CloudStack, machine: Controller) -> None:
    ec2 = stack.cloud.client("ec2")
    ec2.terminate_instances(InstanceIds=[machine.id])
    ec2.get_waiter("instance_terminated").wait(InstanceIds=[machine.id])
