"""The second fallback for Lustre: images that muster has built in this account, whose kernel has a client.

AWS does not say which kernel its images have: neither their name nor their description contains it. Images that muster
built have it in a tag, and the client is installed in them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from botocore.exceptions import ClientError

from cluster.spec.issue import Issue, error, warning
from infra.home import Home
from infra.targets.aws.images.baked_images import (
    BUILT_TAG,
    PURPOSE_TAG,
    SOURCE_TAG,
    is_tested,
    list_snapshots,
    read_client_kernel,
)
from infra.targets.aws.leftovers.kind import read_tags
from infra.targets.aws.plan import images
from infra.targets.aws.preflight.images import judge, list_uses
from infra.targets.aws.preflight.subject import Subject
from infra.targets.aws.spec import aws_section

_MAX_SHOWN = 3
# A key that is gone, or whose policy does not even let the caller describe it.
_NO_KEY = ("NotFoundException", "AccessDeniedException")


@dataclass(frozen=True)
class Choice:
    """The image that machines of one kind start from, and why newer ones do not fit."""

    kind: str
    image: str = ""
    """Empty if none fits."""
    kernel: str = ""
    rejected: tuple[str, ...] = ()


def choose_images(subject: Subject, architecture: str, problem: Issue) -> Issue:
    """Choose an image for each kind of machine of an architecture, which only `up` stores; return what was tried."""
    kinds = [kind for kind in images.parameters(subject.spec) if kind.partition("-")[2] == architecture]
    choices = [_choose_image(subject, kind) for kind in kinds]
    if not all(choice.image for choice in choices):
        tried = "; ".join(_describe_tried(choice) for choice in choices if not choice.image)
        return error(problem.code, problem.where, f"{problem.message}; {tried}", problem.fix)
    subject.fallbacks.update({choice.kind: choice.image for choice in choices})
    chosen = ", ".join(f"{choice.image} with {choice.kernel} ({choice.kind})" for choice in choices)
    message = f"{problem.message}; machines start from images that muster has built: {chosen}"
    fields = " and ".join(f"`aws.{images.FIELDS[kind.partition('-')[0]]}`" for kind in kinds)
    fix = f"keep these images while the cluster exists, which stays with them; or name others with {fields}"
    return warning("lustre_image", problem.where, message, fix)


def _choose_image(subject: Subject, kind: str) -> Choice:
    """Return the newest image that fits all machines of a kind."""
    rejected: list[str] = []
    for raw in _list_built(subject, kind.partition("-")[0]):
        fault = next(_find_faults(subject, kind, raw), None)
        if fault is None:
            kernel = read_client_kernel(Home.of(os.environ), raw)
            return Choice(kind, raw["ImageId"], kernel, tuple(rejected))
        rejected.append(fault)
    return Choice(kind, rejected=tuple(rejected))


def _list_built(subject: Subject, purpose: str) -> list[Mapping[str, Any]]:
    """Return the tested images of the account for a purpose, of all clusters, the newest first."""
    filters = [{"Name": f"tag:{PURPOSE_TAG}", "Values": [purpose]}]
    listed = subject.client("ec2").describe_images(Owners=["self"], Filters=filters)["Images"]
    tested = [raw for raw in listed if is_tested(raw)]
    return sorted(tested, key=lambda raw: read_tags(raw["Tags"]).get(BUILT_TAG, ""), reverse=True)


def _find_faults(subject: Subject, kind: str, raw: Mapping[str, Any]) -> Iterator[str]:
    name, now = f"'{raw['ImageId']}'", datetime.now(UTC)
    if not read_client_kernel(Home.of(os.environ), raw):
        yield f"{name} has no Lustre client"
    source, parameter = read_tags(raw["Tags"]).get(SOURCE_TAG, ""), images.parameters(subject.spec)[kind]
    if source != parameter:
        # Machines would get what someone put into an image of another cluster, instead of AWS's image.
        yield f"{name} was built from {source or 'an unknown image'}, not from {parameter}"
    if key := _find_foreign_key(subject, raw):
        yield f"{name} is encrypted with {key}, which is neither aws.kms_key nor AWS's key for disks"
    for image, use in list_uses(subject.spec):
        if image is None and images.kind(use.machine) == kind:
            issues = judge(raw, use, subject.identity.account, now)
            yield from (issue.message for issue in issues if issue.level == "error")


def _find_foreign_key(subject: Subject, raw: Mapping[str, Any]) -> str:
    """Return the key of an image's disks if launches are not allowed to use it; empty if they are.

    The policies of a cluster allow its own key. AWS's key for disks allows every caller of the account.
    """
    section, snapshots = aws_section(subject.spec), list_snapshots(raw)
    rows = subject.client("ec2").describe_snapshots(SnapshotIds=snapshots)["Snapshots"] if snapshots else []
    keys = dict.fromkeys(row["KmsKeyId"] for row in rows if row.get("Encrypted") and row.get("KmsKeyId"))
    others = (key for key in keys if section is None or key != section.kms_key)
    return next((key for key in others if not _is_managed_by_aws(subject, key)), "")


def _is_managed_by_aws(subject: Subject, key: str) -> bool:
    try:
        metadata = subject.client("kms").describe_key(KeyId=key)["KeyMetadata"]
    except ClientError as failure:
        if failure.response["Error"]["Code"] not in _NO_KEY:
            raise
        return False
    return bool(metadata.get("KeyManager") == "AWS")


def _describe_tried(choice: Choice) -> str:
    if not choice.rejected:
        return f"account and region have no {choice.kind} image that muster has built"
    more = len(choice.rejected) - _MAX_SHOWN
    shown = [*choice.rejected[:_MAX_SHOWN], *([f"{more} older ones"] if more > 0 else [])]
    return f"no {choice.kind} image that muster has built fits: {', '.join(shown)}"
