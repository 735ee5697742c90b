"""Images: that they exist, fit their machines, and that the disk of the launch template is their root disk."""

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
from infra.targets.aws.plan.launch_template import ROOT_DEVICE, ROOT_GB
from infra.targets.aws.plan.machines import FIXED_ROOT_GB
from infra.targets.aws.preflight.subject import Subject

Image = Mapping[str, Any]

_MISSING = ("InvalidAMIID.NotFound", "InvalidAMIID.Malformed", "InvalidAMIID.Unavailable")
_NO_PARAMETER = "ParameterNotFound"
_TRUSTED = "amazon"


@dataclass(frozen=True)
class Use:
    """A machine that starts from an image which the spec names."""

    field: str
    machine: InstanceType
    root_gb: int = ROOT_GB

    @property
    def where(self) -> str:
        return f"aws.{self.field}"


def fitting(subject: Subject) -> Iterator[Issue]:
    spec = subject.spec
    for kind, path in images.parameters(spec).items():
        if named(subject, path) is None:
            field = images.FIELDS[kind.partition("-")[0]]
            message = f"{subject.region} has no image under {path}"
            yield error(
                "image_parameter", f"aws.{field}", message, f"name an image of your own with `{field}: ami-...`"
            )
    for image, uses in _uses(spec).items():
        found = _image(subject, image)
        if found is None:
            account = subject.identity.account
            message = f"'{image}' does not exist in {subject.region}, or account {account} may not use it"
            yield error("image_missing", uses[0].where, message, "name one that `aws ec2 describe-images` lists")
            continue
        for use in uses:
            yield from judge(found, use, subject.identity.account, datetime.now(UTC))


def named(subject: Subject, path: str) -> str | None:
    """The image behind a public parameter."""
    try:
        return str(subject.client("ssm").get_parameter(Name=path)["Parameter"]["Value"])
    except ClientError as failure:
        if failure.response["Error"]["Code"] != _NO_PARAMETER:
            raise
        return None


def _uses(spec: ClusterSpec) -> dict[str, list[Use]]:
    """By image that the spec names; of each field and architecture the one with the smallest disk is enough."""
    fixed = [machines.controller(spec), *([machines.login(spec)] if spec.login.enabled else [])]
    starting = [(one, FIXED_ROOT_GB) for one in fixed]
    starting += [(machines.compute(group), ROOT_GB) for group in spec.groups.values()]
    found: dict[str, dict[tuple[str, str], Use]] = {}
    for machine, root_gb in starting:
        if image := images.given(spec, machine):
            field = images.field(machine)
            found.setdefault(image, {}).setdefault((field, machine.architecture), Use(field, machine, root_gb))
    return {image: list(uses.values()) for image, uses in found.items()}


def judge(found: Image, use: Use, account: str, now: datetime) -> Iterator[Issue]:
    name, where, machine = f"'{found['ImageId']}'", use.where, use.machine
    if found["State"] != "available":
        yield error("image_state", where, f"{name} is {found['State']}; allowed: available", "name another image")
    if found.get("Architecture", machine.architecture) != machine.architecture:
        message = f"{name} is for {found['Architecture']}; {machine.name} is {machine.architecture}"
        yield error("image_architecture", where, message, f"name an image for {machine.architecture}")
    if found.get("Platform") == "windows":
        yield error("image_platform", where, f"{name} is a Windows image", "name one of Ubuntu 22.04")
    if found.get("RootDeviceName", ROOT_DEVICE) != ROOT_DEVICE:
        message = (
            f"{name} has its root disk at {found['RootDeviceName']}; nodes give {ROOT_DEVICE} its size and encryption"
        )
        yield error("image_root", where, message, f"name an Ubuntu image, whose root disk is {ROOT_DEVICE}")
    if (size := _root_gb(found)) > use.root_gb:
        message = f"{name} needs a root disk of {size} GB; {machine.name} gets {use.root_gb}"
        yield error("image_size", where, message, "name a smaller image")
    if not found.get("EnaSupport", True):
        yield error(
            "image_network", where, f"{name} has no ENA support: no machine of this size starts", "name another image"
        )
    owner = found.get("ImageOwnerAlias") or found["OwnerId"]
    if owner not in (_TRUSTED, account):
        message = f"{name} belongs to account {owner}, neither Amazon nor account {account}"
        yield warning(
            "image_owner",
            where,
            message,
            "make sure that you trust it: it runs as root on every machine that starts from it",
        )
    if _past(found.get("DeprecationTime"), now):
        message = f"{name} is deprecated since {found['DeprecationTime'][:10]}: it gets no repairs"
        yield warning("image_old", where, message, "name a newer one; a change of the image replaces the nodes")


def _image(subject: Subject, name: str) -> Image | None:
    try:
        found = subject.client("ec2").describe_images(ImageIds=[name])["Images"]
    except ClientError as failure:
        if failure.response["Error"]["Code"] in _MISSING:
            return None
        raise
    return found[0] if found else None


def _root_gb(found: Image) -> int:
    disks = {one["DeviceName"]: one.get("Ebs", {}) for one in found.get("BlockDeviceMappings", [])}
    return int(disks.get(found.get("RootDeviceName", ROOT_DEVICE), {}).get("VolumeSize", 0))


def _past(moment: str | None, now: datetime) -> bool:
    return bool(moment) and datetime.fromisoformat(str(moment)) < now
