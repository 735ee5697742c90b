"""Checks of images: they exist, match their machines, and have the root disk that the launch template expects."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from botocore.exceptions import ClientError

from cluster.catalog.instances import InstanceType
from cluster.spec import ClusterSpec
from cluster.spec.issue import Issue, error, warning
from infra.targets.aws.plan import images, machines
from infra.targets.aws.plan.launch_template import ROOT_DEVICE, ROOT_GB, root_gb
from infra.targets.aws.plan.machines import FIXED_ROOT_GB
from infra.targets.aws.preflight.subject import Subject

Image = Mapping[str, Any]

_MISSING = ("InvalidAMIID.NotFound", "InvalidAMIID.Malformed", "InvalidAMIID.Unavailable")
_NO_PARAMETER = "ParameterNotFound"
_AMAZON = "amazon"


@dataclass(frozen=True)
class ImageUse:
    """A machine that starts from an image which the spec names."""

    field: str
    machine: InstanceType
    root_gb: int = ROOT_GB

    @property
    def where(self) -> str:
        return f"aws.{self.field}"


def check_images(subject: Subject) -> Iterator[Issue]:
    """Report images that are missing or do not match the machines that start from them."""
    spec = subject.spec
    for kind, path in images.parameters(spec).items():
        if read_image_parameter(subject, path) is None:
            field = images.FIELDS[kind.partition("-")[0]]
            message = f"{subject.region} has no image under {path}"
            yield error("image_parameter", f"aws.{field}", message, f"name your own image with `{field}: ami-...`")
    for image, uses in _list_uses(spec).items():
        description = _describe_image(subject, image)
        if description is None:
            account = subject.identity.account
            message = f"'{image}' does not exist in {subject.region}, or account {account} may not use it"
            yield error("image_missing", uses[0].where, message, "name one that `aws ec2 describe-images` lists")
            continue
        for use in uses:
            yield from judge(description, use, subject.identity.account, datetime.now(UTC))


def read_image_parameter(subject: Subject, path: str) -> str | None:
    """Return the image that a public parameter names; None if the region has none."""
    try:
        return str(subject.client("ssm").get_parameter(Name=path)["Parameter"]["Value"])
    except ClientError as failure:
        if failure.response["Error"]["Code"] != _NO_PARAMETER:
            raise
        return None


def _list_uses(spec: ClusterSpec) -> dict[str, list[ImageUse]]:
    """Return the uses by image; for each field and architecture, the machine with the smallest disk."""
    fixed = [machines.controller(spec), *([machines.login(spec)] if spec.login.enabled else [])]
    machine_disks = [(machine, FIXED_ROOT_GB) for machine in fixed]
    machine_disks += [(machines.compute(group), root_gb(group)) for group in spec.groups.values()]
    uses_by_image: dict[str, dict[tuple[str, str], ImageUse]] = {}
    # The smallest disk of each field and architecture is the one that may be too small.
    for machine, size_gb in sorted(machine_disks, key=lambda use: use[1]):
        if image := images.given(spec, machine):
            field = images.field(machine)
            uses_by_image.setdefault(image, {}).setdefault(
                (field, machine.architecture), ImageUse(field, machine, size_gb)
            )
    return {image: list(uses.values()) for image, uses in uses_by_image.items()}


def judge(image: Image, use: ImageUse, account: str, now: datetime) -> Iterator[Issue]:
    """Yield issues of an image for a machine that starts from it."""
    name, where, machine = f"'{image['ImageId']}'", use.where, use.machine
    if image["State"] != "available":
        yield error("image_state", where, f"{name} is {image['State']}; allowed: available", "name another image")
    if image.get("Architecture", machine.architecture) != machine.architecture:
        message = f"{name} is for {image['Architecture']}; {machine.name} is {machine.architecture}"
        yield error("image_architecture", where, message, f"name an image for {machine.architecture}")
    if image.get("Platform") == "windows":
        yield error("image_platform", where, f"{name} is a Windows image", "name an Ubuntu 22.04 image")
    if image.get("RootDeviceName", ROOT_DEVICE) != ROOT_DEVICE:
        message = f"{name} has its root disk at {image['RootDeviceName']}; nodes need it at {ROOT_DEVICE}"
        yield error("image_root", where, message, f"name an Ubuntu image, whose root disk is {ROOT_DEVICE}")
    if (size := _read_root_gb(image)) > use.root_gb:
        message = f"{name} needs a root disk of {size} GB; {machine.name} gets {use.root_gb}"
        yield error("image_size", where, message, "name a smaller image")
    if not image.get("EnaSupport", True):
        yield error(
            "image_network",
            where,
            f"{name} has no ENA support: instances of this type do not start",
            "name another image",
        )
    owner = image.get("ImageOwnerAlias") or image["OwnerId"]
    if owner not in (_AMAZON, account):
        message = f"{name} belongs to account {owner}, neither Amazon nor account {account}"
        yield warning(
            "image_owner",
            where,
            message,
            "make sure that you trust it: it runs as root on every machine that starts from it",
        )
    if _is_past(image.get("DeprecationTime"), now):
        message = f"{name} is deprecated since {image['DeprecationTime'][:10]}: it gets no updates"
        yield warning("image_old", where, message, "name a newer one; a change of the image replaces the nodes")


def _describe_image(subject: Subject, name: str) -> Image | None:
    try:
        descriptions = subject.client("ec2").describe_images(ImageIds=[name])["Images"]
    except ClientError as failure:
        if failure.response["Error"]["Code"] in _MISSING:
            return None
        raise
    return descriptions[0] if descriptions else None


def _read_root_gb(image: Image) -> int:
    disks = {mapping["DeviceName"]: mapping.get("Ebs", {}) for mapping in image.get("BlockDeviceMappings", [])}
    return int(disks.get(image.get("RootDeviceName", ROOT_DEVICE), {}).get("VolumeSize", 0))


def _is_past(moment: str | None, now: datetime) -> bool:
    return bool(moment) and datetime.fromisoformat(str(moment)) < now
