"""Rules about the aws section: that it is there, and that what it names looks like what AWS calls so."""

from __future__ import annotations

import re
from collections.abc import Iterator
from difflib import SequenceMatcher

from cluster.spec import ClusterSpec
from cluster.spec.issue import Issue, error
from infra.targets.aws.plan import images
from infra.targets.aws.spec import aws_section
from infra.targets.aws.validate.types import regions

AMI = re.compile(r"ami-([0-9a-f]{8}|[0-9a-f]{17})")
POLICY = re.compile(r"arn:aws[a-z-]*:iam::(\d{12}|aws):policy/[\w+=,.@/-]+")
KEY = re.compile(r"arn:aws[a-z-]*:kms:([a-z0-9-]+):\d{12}:key/[0-9a-f-]{36}")


def present(spec: ClusterSpec) -> Iterator[Issue]:
    if aws_section(spec) is None:
        message = "required with target aws, but missing; expected a mapping with the key region"
        yield error("aws_missing", "aws", message, "add `aws: {region: us-east-1}`")


def region(spec: ClusterSpec) -> Iterator[Issue]:
    section = aws_section(spec)
    if section is None or section.region in regions():
        return
    near = _nearest(section.region)
    message = f"'{section.region}' is not a region the catalog knows; known: {', '.join(regions())}"
    yield error("aws_region", "aws.region", message, f"write for example `region: {near}`")


def zones(spec: ClusterSpec) -> Iterator[Issue]:
    """A zone is its region and a letter; a local zone has a part between them and none of the services needed here."""
    section = aws_section(spec)
    if section is None:
        return
    places = {"aws.zones": section.zones} | {
        f"groups.{n}.capacity.zones": g.capacity.zones for n, g in spec.groups.items()
    }
    for where, named in places.items():
        for index, zone in enumerate(named):
            if not re.fullmatch(re.escape(section.region) + "[a-z]", zone):
                message = f"'{zone}' is not a zone of region {section.region}; allowed: the region and one letter"
                yield error("zone_region", f"{where}[{index}]", message, f"write for example `{section.region}a`")
            elif zone in named[:index]:
                yield error("zone_twice", f"{where}[{index}]", f"'{zone}' is named twice", "remove one of the two")


def group_zones(spec: ClusterSpec) -> Iterator[Issue]:
    """Nodes can only be where the network has a subnet."""
    section = aws_section(spec)
    if section is None or not section.zones:
        return
    for name, group in spec.groups.items():
        for index, zone in enumerate(group.capacity.zones):
            if zone not in section.zones:
                message = f"'{zone}' has no subnet; allowed: {', '.join(section.zones)} (aws.zones)"
                where = f"groups.{name}.capacity.zones[{index}]"
                yield error("zone_without_subnet", where, message, "add it to aws.zones, or name one of these")


def ids(spec: ClusterSpec) -> Iterator[Issue]:
    section = aws_section(spec)
    if section is None:
        return
    for field in images.FIELDS.values():
        image = getattr(section, field)
        if image is not None and not AMI.fullmatch(image):
            yield _format(field, image, "ami- and 8 or 17 hexadecimal digits", "ami-0123456789abcdef0")
    boundary = section.permissions_boundary
    if boundary is not None and not POLICY.fullmatch(boundary):
        example = "arn:aws:iam::123456789012:policy/boundary"
        yield _format("permissions_boundary", boundary, "the ARN of an IAM policy", example)
    yield from _key(section.kms_key, section.region)


def _key(key: str | None, region: str) -> Iterator[Issue]:
    if key is None:
        return
    match = KEY.fullmatch(key)
    if not match:
        example = f"arn:aws:kms:{region}:123456789012:key/00000000-1111-2222-3333-444444444444"
        yield _format("kms_key", key, "the ARN of a KMS key (an alias can be pointed elsewhere)", example)
    elif match[1] != region:
        message = f"the key is in region {match[1]}; allowed: a key in {region}"
        yield error("key_region", "aws.kms_key", message, "name a key of the same region, or remove it to get one")


def _nearest(written: str) -> str:
    """Two letters that changed places are the likeliest slip; `us-esat-1` is as near to us-west-1 otherwise."""

    def nearness(known: str) -> tuple[bool, float]:
        return sorted(known) == sorted(written), SequenceMatcher(None, known, written).ratio()

    return max(regions(), key=nearness)


def _format(field: str, value: str, allowed: str, example: str) -> Issue:
    message = f"'{value}' has another form; allowed: {allowed}"
    return error("aws_format", f"aws.{field}", message, f"write for example `{field}: {example}`")
