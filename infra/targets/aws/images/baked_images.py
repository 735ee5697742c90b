"""Baked images in an account: their tags, the search for them, their removal, and the record of what each contains."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bootstrap.lustre_kernels import list_client_kernels
from cluster import names
from cluster.spec import ClusterSpec
from infra.home import Home, private_folder
from infra.resources.error import ResourceError
from infra.targets.aws.instances import translate_errors
from infra.targets.aws.leftovers.kind import AccountRegion, read_tags
from infra.targets.aws.plan.images import FIELDS
from infra.targets.aws.spec import aws_section, region_of
from infra.targets.mixins import MachineImage
from infra.targets.target import Deployment

PURPOSE_TAG = "muster.image"
SLURM_TAG = "muster.slurm"
ROLES_TAG = "muster.roles"
BASE_TAG = "muster.base"
SOURCE_TAG = "muster.source"
CONTENTS_TAG = "muster.contents"
BUNDLE_TAG = "muster.bundle"
BUILT_TAG = "muster.built"
LUSTRE_TAG = "muster.lustre"
"""Kernel of the image, if it has a Lustre client for it."""

_MAX_USERS = 3
# Most rows that a page of DescribeLaunchTemplateVersions can have.
_PAGE = 200


@dataclass(frozen=True)
class Record:
    """What an image contains, as a file under MUSTER_HOME named after the image."""

    image: str
    region: str
    tags: Mapping[str, str]
    packages: Mapping[str, str] = field(default_factory=dict)
    """Versions by name of all distribution packages."""


def list_cluster_images(deployment: Deployment) -> list[MachineImage]:
    """Return the tested images of a cluster, the latest first."""
    with translate_errors("images", deployment.region):
        listed = list(_describe(AccountRegion(deployment.region), deployment.cluster))
    images = (parse_image(raw) for raw in listed if is_tested(raw))
    return sorted(images, key=lambda image: image.built, reverse=True)


def remove_cluster_image(deployment: Deployment, image: str) -> None:
    """Remove an image of a cluster; raise ResourceError if the cluster has no such image."""
    account = AccountRegion(deployment.region)
    with translate_errors("images", deployment.region):
        by_id = {raw["ImageId"]: raw for raw in _describe(account, deployment.cluster)}
        if image in by_id:
            _check_unused(account, image)
            remove(account, by_id[image])
            return
    what = f"'{image}' is no image of cluster {deployment.cluster} in {deployment.region}"
    raise ResourceError("", what, f"allowed: {', '.join(by_id) or 'none, it has no images'}")


def check_release(spec: ClusterSpec, release: str, unnamed: Mapping[str, str]) -> None:
    """Raise ResourceError if nodes of a spec start from a baked image with another release of Slurm.

    `unnamed` are the images by kind that nodes start from although the spec does not name them.
    """
    region, section = region_of(spec), aws_section(spec)
    with translate_errors("images", region):
        named = {f"aws.{name}": getattr(section, name, None) for name in FIELDS.values()}
        named |= {f"groups.{name}.image": group.image for name, group in spec.groups.items()}
        chosen = {f"aws.{FIELDS[kind.partition('-')[0]]}": image for kind, image in unnamed.items()}
        for where, image in [*named.items(), *chosen.items()]:
            raw = describe(AccountRegion(region), image) if image else None
            baked = parse_image(raw).slurm if raw and is_baked(raw) else release
            if baked != release:
                what = f"'{image}' has Slurm {baked}, so new nodes would not have {release}"
                fix = "remove it and run `muster up`; after the upgrade, `muster image refresh` builds new images"
                if image in unnamed.values():
                    what = f"not set, so nodes start from {what}"
                    fix = f"name images with Slurm {release} with `aws.ami` and `aws.plain_ami`, and run `muster up`"
                raise ResourceError(where, what, fix)


def parse_image(raw: Mapping[str, Any]) -> MachineImage:
    """Return a baked image as EC2 describes it."""
    tags = read_tags(raw.get("Tags"))
    return MachineImage(
        id=raw["ImageId"],
        purpose=tags.get(PURPOSE_TAG, ""),
        slurm=tags.get(SLURM_TAG, ""),
        base=tags.get(BASE_TAG, ""),
        built=tags.get(BUILT_TAG, ""),
    )


def is_baked(raw: Mapping[str, Any]) -> bool:
    """Return whether muster built an image."""
    return PURPOSE_TAG in read_tags(raw.get("Tags"))


def is_tested(raw: Mapping[str, Any]) -> bool:
    """Return whether an image passed its test; others are remains of a build that did not end."""
    return names.KEEP in read_tags(raw.get("Tags"))


def describe(account: AccountRegion, image: str) -> Mapping[str, Any] | None:
    """Return an image as EC2 describes it; None if the account has no such image in this region."""
    filters = [{"Name": "image-id", "Values": [image]}]
    return next(iter(account.list_items("ec2", "describe_images", "Images", Filters=filters)), None)


def list_snapshots(raw: Mapping[str, Any]) -> list[str]:
    """Return the snapshots that hold an image's disks."""
    disks = (mapping.get("Ebs", {}) for mapping in raw.get("BlockDeviceMappings", ()))
    return [disk["SnapshotId"] for disk in disks if disk.get("SnapshotId")]


def keep(account: AccountRegion, raw: Mapping[str, Any]) -> None:
    """Mark an image as tested: from then on, it stays until someone removes it."""
    tags = [{"Key": names.KEEP, "Value": "true"}]
    account.client("ec2").create_tags(Resources=[raw["ImageId"], *list_snapshots(raw)], Tags=tags)


def remove(account: AccountRegion, raw: Mapping[str, Any]) -> None:
    """Deregister an image and delete its snapshots, which are what costs money."""
    ec2 = account.client("ec2")
    ec2.deregister_image(ImageId=raw["ImageId"])
    for snapshot in list_snapshots(raw):
        ec2.delete_snapshot(SnapshotId=snapshot)


def remove_untested(account: AccountRegion, cluster: str) -> list[str]:
    """Remove the images of builds that did not end, and return their ids."""
    untested = [raw for raw in _describe(account, cluster) if not is_tested(raw)]
    for raw in untested:
        remove(account, raw)
    return [raw["ImageId"] for raw in untested]


def write_record(home: Home, record: Record) -> Path:
    """Write the record of an image and return its path."""
    path = private_folder(home.images) / f"{record.image}.json"
    path.write_text(json.dumps(asdict(record), indent=1, sort_keys=True) + "\n")
    return path


def find_client_kernel(packages: Iterable[str]) -> str:
    """Return the kernel for which an image with these packages has a Lustre client; empty without a client.

    An image has one client only: that of the kernel with which it starts.
    """
    return next(reversed(list_client_kernels(packages)), "")


def read_client_kernel(home: Home, raw: Mapping[str, Any]) -> str:
    """Return the kernel for which an image has a Lustre client; images of older versions have it in their record."""
    try:
        packages = json.loads((home.images / f"{raw['ImageId']}.json").read_text())["packages"]
    except (OSError, ValueError, KeyError):
        packages = ()
    return read_tags(raw.get("Tags")).get(LUSTRE_TAG) or find_client_kernel(packages)


def read_region(home: Home, image: str) -> str:
    """Return the region of an image that was built from here; empty if there is no record of it."""
    try:
        return str(json.loads((home.images / f"{image}.json").read_text())["region"])
    except (OSError, ValueError, KeyError):
        return ""


def _check_unused(account: AccountRegion, image: str) -> None:
    """Raise ResourceError if a launch template, or a machine that can still run, of the account uses an image."""
    states = ["pending", "running", "stopping", "stopped"]
    filters = [{"Name": "image-id", "Values": [image]}, {"Name": "instance-state-name", "Values": states}]
    reservations = account.list_items("ec2", "describe_instances", "Reservations", Filters=filters)
    users = [f"machine {row['InstanceId']}" for reservation in reservations for row in reservation["Instances"]]
    # Without the id of a template, AWS lists the newest versions of all templates: pages instead of a call for each.
    newest = account.list_items(
        "ec2",
        "describe_launch_template_versions",
        "LaunchTemplateVersions",
        Versions=["$Latest"],
        Filters=[{"Name": "image-id", "Values": [image]}],
        MaxResults=_PAGE,
    )
    users += [
        f"launch template {version['LaunchTemplateName']}"
        for version in newest
        if version["LaunchTemplateData"].get("ImageId") == image
    ]
    if users:
        more = f" and {len(users) - _MAX_USERS} more" if len(users) > _MAX_USERS else ""
        what = f"'{image}' is in use by {', '.join(users[:_MAX_USERS])}{more}"
        fix = "name another image in the stack files of their clusters, run `muster up`, or remove the clusters"
        raise ResourceError("image", what, fix)


def _describe(account: AccountRegion, cluster: str) -> Iterator[Mapping[str, Any]]:
    filters = [{"Name": f"tag:{names.CLUSTER}", "Values": [cluster]}]
    listed: Iterable[Mapping[str, Any]] = account.list_items(
        "ec2", "describe_images", "Images", Owners=["self"], Filters=filters
    )
    return (raw for raw in listed if is_baked(raw) and read_tags(raw.get("Tags")).get(names.CLUSTER) == cluster)
