"""Checks of images: they exist, match their machines, and have the root disk that the launch template expects."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, get_args

from botocore.exceptions import ClientError

from bootstrap.bake import digest_contents
from bootstrap.image_contents import ImageContents
from cluster.catalog.instances import InstanceType
from cluster.inventory import Role
from cluster.spec import ClusterSpec
from cluster.spec.issue import Issue, error, warning
from infra.home import Home
from infra.targets.aws.images.baked_images import CONTENTS_TAG, ROLES_TAG, SLURM_TAG, is_baked, read_region
from infra.targets.aws.images.builder_machine import read_root_gb
from infra.targets.aws.images.planned_images import describe_contents, plan_images
from infra.targets.aws.leftovers.kind import read_tags
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
    group: str = ""
    """The group, if it has an image of its own."""
    contents: ImageContents | None = None
    """What a baked image has to contain."""

    @property
    def where(self) -> str:
        return f"groups.{self.group}.image" if self.group else f"aws.{self.field}"


def check_images(subject: Subject) -> Iterator[Issue]:
    """Report images that are missing or do not match the machines that start from them."""
    spec = subject.spec
    for kind, path in images.parameters(spec).items():
        if read_image_parameter(subject, path) is None:
            field = images.FIELDS[kind.partition("-")[0]]
            message = f"{subject.region} has no image under {path}"
            yield error("image_parameter", f"aws.{field}", message, f"name your own image with `{field}: ami-...`")
    for image, uses in _group_uses(spec).items():
        description = _describe_image(subject, image)
        if description is None:
            yield _report_missing(subject, image, uses[0].where)
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


def list_uses(spec: ClusterSpec) -> list[tuple[str | None, ImageUse]]:
    """Return every use of an image by machines, with the image if the spec names it, the smallest disks first."""
    contents = {planned.field: planned.contents for planned in plan_images(spec)}
    compute_only = describe_contents(spec, ("compute",))

    def describe_use(machine: InstanceType, size_gb: int, group: str = "") -> ImageUse:
        field = images.field(machine)
        return ImageUse(field, machine, size_gb, group, compute_only if group else contents[field])

    fixed = [machines.controller(spec), *([machines.login(spec)] if spec.login.enabled else [])]
    uses = [(images.given(spec, machine), describe_use(machine, FIXED_ROOT_GB)) for machine in fixed]
    for name, group in spec.groups.items():
        use = describe_use(machines.compute(group), root_gb(group), name if group.image else "")
        uses.append((images.given_to_group(spec, group), use))
    return sorted(uses, key=lambda entry: entry[1].root_gb)


def _group_uses(spec: ClusterSpec) -> dict[str, list[ImageUse]]:
    """Return the uses by image; for each property and architecture, the machine with the smallest disk."""
    uses_by_image: dict[str, dict[tuple[str, str], ImageUse]] = {}
    # The smallest disk of each property and architecture is the one that may be too small.
    for image, use in list_uses(spec):
        if image:
            uses_by_image.setdefault(image, {}).setdefault((use.where, use.machine.architecture), use)
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
    if (size := read_root_gb(image)) > use.root_gb:
        message = f"{name} needs a root disk of {size} GB; {machine.name} gets {use.root_gb}"
        yield error("image_size", where, message, "name a smaller image")
    if not image.get("EnaSupport", True):
        yield error(
            "image_network",
            where,
            f"{name} has no ENA support: instances of this type do not start",
            "name another image",
        )
    if use.contents and is_baked(image):
        yield from judge_contents(image, use.contents, where)
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


def _report_missing(subject: Subject, image: str, where: str) -> Issue:
    elsewhere, fix = read_region(Home.of(os.environ), image), "name one that `aws ec2 describe-images` lists"
    if elsewhere not in ("", subject.region):
        message = f"'{image}' is an image of {elsewhere}; allowed: an image of {subject.region}"
        return error("image_region", where, message, fix)
    message = f"'{image}' does not exist in {subject.region}, or account {subject.identity.account} may not use it"
    return error("image_missing", where, message, fix)


def judge_contents(image: Image, contents: ImageContents, where: str) -> Iterator[Issue]:
    """Yield issues of an image that muster built, by what its tags say about it."""
    name, tags = f"'{image['ImageId']}'", read_tags(image.get("Tags"))
    slurm, roles = tags.get(SLURM_TAG, ""), tags.get(ROLES_TAG, "").split()
    otherwise = "the image of the other groups" if where.startswith("groups.") else "AWS's image"
    fix = f"name one that `muster image build` has built for this spec, or remove the property to use {otherwise}"
    fix_stale = "build a new one with `muster image refresh`"
    if where.startswith("groups."):
        fix_stale += "; if another cluster built this one, remove the property first"
    if slurm != contents.slurm:
        message = f"{name} has Slurm {slurm}; software.slurm is {contents.slurm}"
        yield error("image_slurm", where, message, f'write `software: {{slurm: "{slurm}"}}`, {fix}')
    elif lacking := [role for role in contents.roles if role not in roles]:
        message = f"{name} was built for {', '.join(roles)}, not for {', '.join(lacking)}, which would start from it"
        yield error("image_roles", where, message, fix)
    elif tags.get(CONTENTS_TAG) != _digest_for(contents, roles):
        message = f"{name} is of another version of muster or for another spec; nodes install what it lacks at boot"
        yield warning("image_stale", where, message, fix_stale)


def _digest_for(contents: ImageContents, roles: Sequence[str]) -> str:
    """Return the digest of contents in an image for these roles, which may be more than start from it here."""
    return digest_contents(contents.model_copy(update={"roles": tuple(r for r in roles if r in get_args(Role))}))


def _describe_image(subject: Subject, name: str) -> Image | None:
    try:
        descriptions = subject.client("ec2").describe_images(ImageIds=[name])["Images"]
    except ClientError as failure:
        if failure.response["Error"]["Code"] in _MISSING:
            return None
        raise
    return descriptions[0] if descriptions else None


def _is_past(moment: str | None, now: datetime) -> bool:
    return bool(moment) and datetime.fromisoformat(str(moment)) < now
