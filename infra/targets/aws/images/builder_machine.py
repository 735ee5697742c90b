"""The machine that builds or tests an image: launched in the cluster's subnet, never a node, and always ended."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from cluster import names
from infra.resources.error import ResourceError
from infra.targets.aws import names as aws_names
from infra.targets.aws.launcher.api import AwsApi, pause
from infra.targets.aws.launcher.instances import STATES
from infra.targets.aws.node import parameters
from infra.targets.aws.node.parameters import Report, parse_report
from infra.targets.aws.plan.launch_template import ROOT_DEVICE
from slurm.power.launcher import LauncherError

# As for nodes: a hop limit of 1 keeps containers from the machine's credentials.
_METADATA = {"HttpEndpoint": "enabled", "HttpTokens": "required", "HttpPutResponseHopLimit": 1}
_POLL_S, _EC2_POLL_S = 3.0, 30.0
# A new kernel, a build of Slurm, and the snapshot of a disk of 100 GB can each take a quarter of an hour and more.
READY_TIMEOUT_S, STOP_TIMEOUT_S, IMAGE_TIMEOUT_S = 5400.0, 600.0, 3600.0
# Ubuntu's own image has 8 GB: a kernel with its headers and a build of Slurm need more. No node has a smaller disk.
LEAST_ROOT_GB = 30
_GONE = ("shutting-down", "terminated", "stopping", "stopped")


@dataclass(frozen=True)
class BuildSite:
    """Where machines that build images run, and what they belong to."""

    cluster: str
    stack: str
    region: str
    bucket: str
    subnet_id: str
    security_groups: Sequence[str]
    tags: Mapping[str, str]
    kms_key: str | None = None
    """Key of the image's disks; by default the account's own key for disks, because the cluster's goes with it."""


@dataclass
class BuilderMachine:
    """A machine under way; tests pass another clock."""

    api: AwsApi
    site: BuildSite
    purpose: str
    show: Callable[[str], None]
    sleep: Callable[[float], object] = field(default=pause)
    clock: Callable[[], float] = field(default=time.monotonic)
    id: str = ""

    @property
    def parameter(self) -> str:
        return parameters.node(self.site.cluster, parameters.builder(self.purpose))

    def launch(self, image: Mapping[str, Any], instance_type: str, user_data: str) -> None:
        """Launch the machine from an image, as EC2 describes it; the user data begins the work."""
        self._forget_report()
        tags = dict(self.site.tags) | {names.ROLE: parameters.BUILDER}
        tags |= aws_names.name_tag(self.site.cluster, parameters.builder(self.purpose))
        # Nodes get larger disks: the filesystem grows at their first boot.
        disk: dict[str, Any] = {
            "Encrypted": True,
            "DeleteOnTermination": True,
            "VolumeType": "gp3",
            "VolumeSize": choose_root_gb(image),
        }
        answer = self.api.call(
            "ec2",
            "run_instances",
            ImageId=image["ImageId"],
            InstanceType=instance_type,
            MinCount=1,
            MaxCount=1,
            # The library encodes it in base64.
            UserData=user_data,
            IamInstanceProfile={"Name": aws_names.prefixed(self.site.cluster, "compute")},
            MetadataOptions=_METADATA,
            InstanceInitiatedShutdownBehavior="terminate",
            BlockDeviceMappings=[
                {
                    "DeviceName": ROOT_DEVICE,
                    "Ebs": disk | ({"KmsKeyId": self.site.kms_key} if self.site.kms_key else {}),
                }
            ],
            NetworkInterfaces=[
                {
                    "DeviceIndex": 0,
                    "SubnetId": self.site.subnet_id,
                    "Groups": list(self.site.security_groups),
                    "DeleteOnTermination": True,
                    "AssociatePublicIpAddress": False,
                }
            ],
            TagSpecifications=[
                {"ResourceType": kind, "Tags": list_tags(tags)} for kind in ("instance", "volume", "network-interface")
            ],
        )
        self.id = answer["Instances"][0]["InstanceId"]

    def wait_until_ready(self) -> None:
        """Wait for the machine's report; raise ResourceError if it failed, ended or is late."""
        deadline, next_look = self.clock() + READY_TIMEOUT_S, self.clock() + _EC2_POLL_S
        while True:
            report = self._read_report()
            if report and report.state == "ready":
                return
            if report and report.state == "failed":
                fix = f"see `muster logs {parameters.builder(self.purpose)}`, then build again"
                raise ResourceError("", f"the {self.purpose} image failed at {report.step}: {report.line}", fix)
            if report:
                self.show(f"{self.purpose} image: {report.step}, {report.line}")
            if self.clock() > next_look:
                next_look = self.clock() + _EC2_POLL_S
                self._require_alive()
            if self.clock() > deadline:
                what = f"the machine {self.id} did not report within {READY_TIMEOUT_S / 60:.0f} minutes"
                raise ResourceError("", what, "build again; the machine is ended")
            self.sleep(_POLL_S)

    def stop(self) -> None:
        """Stop the machine, so that its disk is complete, and wait until it has stopped."""
        self.api.call("ec2", "stop_instances", InstanceIds=[self.id])
        self._wait(lambda: self._read_state() == "stopped", STOP_TIMEOUT_S, f"{self.id} did not stop")

    def create_image(self, name: str, tags: Mapping[str, str]) -> str:
        """Create an image of the stopped machine and return its id; it is not available yet."""
        kinds = ("image", "snapshot")
        specifications = [{"ResourceType": kind, "Tags": list_tags(tags)} for kind in kinds]
        answer = self.api.call(
            "ec2", "create_image", InstanceId=self.id, Name=name, Description=name, TagSpecifications=specifications
        )
        return str(answer["ImageId"])

    def wait_for_image(self, image: str) -> None:
        """Wait until an image is available; raise ResourceError if EC2 could not create it, or it is late."""
        self._wait(lambda: self._is_available(image), IMAGE_TIMEOUT_S, f"{image} did not become available")

    def end(self) -> str:
        """Terminate the machine, if it was launched, and delete its report; return why AWS did not terminate it."""
        refusal = ""
        try:
            if self.id:
                self.api.call("ec2", "terminate_instances", InstanceIds=[self.id])
        except LauncherError as error:
            refusal = str(error.fault)
        with suppress(LauncherError):
            self._forget_report()
        return refusal

    def _forget_report(self) -> None:
        self.api.call("ssm", "delete_parameters", Names=[self.parameter])

    def _read_report(self) -> Report | None:
        """Return the machine's own report; None before it has one."""
        answer = self.api.call("ssm", "get_parameters", Names=[self.parameter])["Parameters"]
        report = parse_report(answer[0]["Value"]) if answer else None
        return report if report and report.instance == self.id else None

    def _read_state(self) -> str:
        """Return the state of the machine; empty if EC2 does not list it yet."""
        filters = [{"Name": "instance-id", "Values": [self.id]}]
        reservations = self.api.call("ec2", "describe_instances", Filters=filters)["Reservations"]
        return str(reservations[0]["Instances"][0]["State"]["Name"]) if reservations else ""

    def _require_alive(self) -> None:
        if (state := self._read_state()) in _GONE:
            raise ResourceError("", f"the machine {self.id} is {state} before its image was ready", "build again")

    def _is_available(self, image: str) -> bool:
        # A filter, because EC2 may not know the id of a new image everywhere.
        filters = [{"Name": "image-id", "Values": [image]}]
        described = self.api.call("ec2", "describe_images", Filters=filters)["Images"]
        state = described[0]["State"] if described else "pending"
        if state in ("failed", "error", "invalid"):
            raise ResourceError("", f"EC2 could not create image {image}: {state}", "build again")
        return bool(state == "available")

    def _wait(self, is_done: Callable[[], bool], timeout_s: float, problem: str) -> None:
        deadline = self.clock() + timeout_s
        while not is_done():
            if self.clock() > deadline:
                raise ResourceError("", f"{problem} within {timeout_s / 60:.0f} minutes", "build again")
            self.sleep(_POLL_S)


def end_earlier(api: AwsApi, cluster: str) -> list[str]:
    """Terminate machines of builds that were killed, and return their ids."""
    filters = [
        {"Name": f"tag:{names.CLUSTER}", "Values": [cluster]},
        {"Name": f"tag:{names.ROLE}", "Values": [parameters.BUILDER]},
        {"Name": "instance-state-name", "Values": list(STATES)},
    ]
    reservations = api.pages("ec2", "describe_instances", "Reservations", Filters=filters)
    ids = [instance["InstanceId"] for reservation in reservations for instance in reservation["Instances"]]
    if ids:
        api.call("ec2", "terminate_instances", InstanceIds=ids)
    return ids


def choose_root_gb(image: Mapping[str, Any]) -> int:
    """Return the size of the disk on which an image is built, which becomes that of the new image."""
    return max(read_root_gb(image), LEAST_ROOT_GB)


def read_root_gb(image: Mapping[str, Any]) -> int:
    """Return the size of an image's root disk, as EC2 describes the image."""
    disks = {mapping["DeviceName"]: mapping.get("Ebs", {}) for mapping in image.get("BlockDeviceMappings", [])}
    return int(disks.get(image.get("RootDeviceName", ROOT_DEVICE), {}).get("VolumeSize", 0))


def list_tags(tags: Mapping[str, str]) -> list[dict[str, str]]:
    """Return tags in the form of EC2."""
    return [{"Key": key, "Value": value} for key, value in sorted(tags.items())]
