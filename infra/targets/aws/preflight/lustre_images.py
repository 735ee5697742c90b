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

from cluster.spec.issue import Issue, error, warning
from infra.home import Home
from infra.targets.aws.images.baked_images import BUILT_TAG, PURPOSE_TAG, is_tested, read_client_kernel
from infra.targets.aws.leftovers.kind import read_tags
from infra.targets.aws.plan import images
from infra.targets.aws.preflight.images import judge, list_uses
from infra.targets.aws.preflight.subject import Subject

_MAX_SHOWN = 3


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
        kernel = read_client_kernel(Home.of(os.environ), raw)
        faults = [f"'{raw['ImageId']}' has no Lustre client"] if not kernel else list(_find_faults(subject, kind, raw))
        if not faults:
            return Choice(kind, raw["ImageId"], kernel, tuple(rejected))
        rejected.append(faults[0])
    return Choice(kind, rejected=tuple(rejected))


def _list_built(subject: Subject, purpose: str) -> list[Mapping[str, Any]]:
    """Return the tested images of the account for a purpose, of all clusters, the newest first."""
    filters = [{"Name": f"tag:{PURPOSE_TAG}", "Values": [purpose]}]
    listed = subject.client("ec2").describe_images(Owners=["self"], Filters=filters)["Images"]
    tested = [raw for raw in listed if is_tested(raw)]
    return sorted(tested, key=lambda raw: read_tags(raw["Tags"]).get(BUILT_TAG, ""), reverse=True)


def _find_faults(subject: Subject, kind: str, raw: Mapping[str, Any]) -> Iterator[str]:
    now = datetime.now(UTC)
    for image, use in list_uses(subject.spec):
        if image is None and images.kind(use.machine) == kind:
            issues = judge(raw, use, subject.identity.account, now)
            yield from (issue.message for issue in issues if issue.level == "error")


def _describe_tried(choice: Choice) -> str:
    if not choice.rejected:
        return f"account and region have no {choice.kind} image that muster has built"
    more = len(choice.rejected) - _MAX_SHOWN
    shown = [*choice.rejected[:_MAX_SHOWN], *([f"{more} older ones"] if more > 0 else [])]
    return f"no {choice.kind} image that muster has built fits: {', '.join(shown)}"
