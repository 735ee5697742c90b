"""Rules about the aws section: it is present, and its regions, zones, ids and ARNs are well formed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from difflib import SequenceMatcher

from cluster.spec import ClusterSpec
from cluster.spec.issue import Issue, error
from infra.targets.aws.plan import images
from infra.targets.aws.spec import POLICY_EXAMPLE, RolePolicies, aws_section, read_end
from infra.targets.aws.validate.local_zones import is_local_zone
from infra.targets.aws.validate.types import list_regions

AMI = re.compile(r"ami-([0-9a-f]{8}|[0-9a-f]{17})")
_AMI_FORMAT, _AMI_EXAMPLE = "ami- and 8 or 17 hexadecimal digits", "ami-0123456789abcdef0"
SNAPSHOT = re.compile(r"snap-([0-9a-f]{8}|[0-9a-f]{17})")
# The default quota of an account; one is left for the policy of a spent budget.
# docs.aws.amazon.com/IAM/latest/UserGuide/reference_iam-quotas.html
MAX_POLICIES = 9
POLICY = re.compile(r"arn:aws[a-z-]*:iam::(\d{12}|aws):policy/[\w+=,.@/-]+")
KEY = re.compile(r"arn:aws[a-z-]*:kms:([a-z0-9-]+):\d{12}:key/[0-9a-f-]{36}")


def check_presence(spec: ClusterSpec) -> Iterator[Issue]:
    """Report a missing aws section."""
    if aws_section(spec) is None:
        message = "required with target aws, but missing; expected a mapping with the key region"
        yield error("aws_missing", "aws", message, "add `aws: {region: us-east-1}`")


def check_region(spec: ClusterSpec) -> Iterator[Issue]:
    """Report a region that the catalog does not have."""
    section = aws_section(spec)
    if section is None or section.region in list_regions():
        return
    nearest = _find_nearest_region(section.region)
    message = f"'{section.region}' is not a region of the catalog; allowed: {', '.join(list_regions())}"
    yield error("aws_region", "aws.region", message, f"write for example `region: {nearest}`")


def check_zones(spec: ClusterSpec) -> Iterator[Issue]:
    """Report zones that are not the region and a letter; other rules are about Local Zones."""
    section = aws_section(spec)
    if section is None:
        return
    # The zones of a region that is misspelled may be right.
    is_known = section.region in list_regions()
    pattern = re.escape(section.region) + "[a-z]"
    places = {"aws.zones": section.zones} | {
        f"groups.{n}.capacity.zones": g.capacity.zones for n, g in spec.groups.items()
    }
    for where, named in places.items():
        for index, zone in enumerate(named):
            if is_known and not re.fullmatch(pattern, zone) and not is_local_zone(zone, section.region):
                message = (
                    f"'{zone}' is not a zone of region {section.region}; allowed: the region and one letter,"
                    " or a Local Zone such as us-east-1-dfw-2a"
                )
                yield error("zone_region", f"{where}[{index}]", message, f"write for example `{section.region}a`")
            elif zone in named[:index]:
                yield error("zone_twice", f"{where}[{index}]", f"'{zone}' is named twice", "remove one of the two")


def check_group_zones(spec: ClusterSpec) -> Iterator[Issue]:
    """Report zones of groups in which the network has no subnet."""
    section = aws_section(spec)
    if section is None or not section.zones:
        return
    for name, group in spec.groups.items():
        for index, zone in enumerate(group.capacity.zones):
            if zone not in section.zones:
                message = f"'{zone}' has no subnet; allowed: {', '.join(section.zones)} (aws.zones)"
                where = f"groups.{name}.capacity.zones[{index}]"
                yield error("zone_without_subnet", where, message, "add it to aws.zones, or name one of these")


def check_ids(spec: ClusterSpec) -> Iterator[Issue]:
    """Report images, policies and keys whose id or ARN is malformed."""
    section = aws_section(spec)
    if section is None:
        return
    for field in images.FIELDS.values():
        image = getattr(section, field)
        if image is not None and not AMI.fullmatch(image):
            yield _report_format(field, image, _AMI_FORMAT, _AMI_EXAMPLE)
    for name, group in spec.groups.items():
        if group.image is not None and not AMI.fullmatch(group.image):
            message = f"'{group.image}' is invalid; allowed: {_AMI_FORMAT}"
            yield error("aws_format", f"groups.{name}.image", message, f"write for example `image: {_AMI_EXAMPLE}`")
    boundary = section.permissions_boundary
    if boundary is not None and not POLICY.fullmatch(boundary):
        example = "arn:aws:iam::123456789012:policy/boundary"
        yield _report_format("permissions_boundary", boundary, "the ARN of an IAM policy", example)
    snapshot = section.state_snapshot
    if snapshot is not None and not SNAPSHOT.fullmatch(snapshot):
        allowed = "snap- and 8 or 17 hexadecimal digits"
        yield _report_format("state_snapshot", snapshot, allowed, "snap-0123456789abcdef0")
    yield from _check_key(section.kms_key, section.region)


def check_policies(spec: ClusterSpec) -> Iterator[Issue]:
    """Report policies that are malformed, repeated or too many for a role, and jobs that could not use theirs."""
    section = aws_section(spec)
    if section is None:
        return
    for role in RolePolicies.model_fields:
        arns: tuple[str, ...] = getattr(section.policies, role)
        where = f"aws.policies.{role}"
        for index, arn in enumerate(arns):
            if not POLICY.fullmatch(arn):
                message = f"'{arn}' is invalid; allowed: the ARN of an IAM policy"
                yield error("policy_format", f"{where}[{index}]", message, f"write for example `{POLICY_EXAMPLE}`")
            elif arn in arns[:index]:
                yield error("policy_twice", f"{where}[{index}]", f"'{arn}' is listed already", "remove it")
        if len(arns) > MAX_POLICIES:
            message = f"{len(arns)} policies, but a role can have {MAX_POLICIES}"
            yield error("policy_count", where, message, "combine some of them in one policy of your own")
    if section.policies.jobs and not spec.network.egress and not spec.network.vpc_id:
        message = "without egress, nodes cannot reach STS to get credentials for jobs"
        fix = "write `egress: true`, or name your own VPC (vpc_id) with access to STS"
        yield error("jobs_offline", "aws.policies.jobs", message, fix)


def check_end(spec: ClusterSpec) -> Iterator[Issue]:
    """Report an end of the cluster that does not exist or has passed."""
    section = aws_section(spec)
    if section is None or section.ends_at is None:
        return
    example = "write for example `ends_at: 2030-01-31 18:00 UTC`"
    try:
        end = read_end(section)
    except ValueError:
        message = f"'{section.ends_at}' is not a time of the calendar; allowed: YYYY-MM-DD HH:MM UTC"
        yield error("end_format", "aws.ends_at", message, example)
        return
    if end and end <= datetime.now(UTC):
        message = f"'{section.ends_at}' has passed, so every machine would end at once; allowed: a time in the future"
        fix = "write a later time or remove it; if the cluster exists, `make teardown` first"
        yield error("end_passed", "aws.ends_at", message, fix)


def _check_key(key: str | None, region: str) -> Iterator[Issue]:
    if key is None:
        return
    match = KEY.fullmatch(key)
    if not match:
        example = f"arn:aws:kms:{region}:123456789012:key/00000000-1111-2222-3333-444444444444"
        yield _report_format("kms_key", key, "the ARN of a KMS key (an alias can change its key)", example)
    elif match[1] != region:
        message = f"the key is in region {match[1]}; allowed: a key in {region}"
        yield error(
            "key_region", "aws.kms_key", message, "name a key of the same region, or remove it to have one created"
        )


def _find_nearest_region(written: str) -> str:
    """Return the most similar region; swapped letters come first: `us-esat-1` is otherwise as near to us-west-1."""

    def rate_similarity(region: str) -> tuple[bool, float]:
        return sorted(region) == sorted(written), SequenceMatcher(None, region, written).ratio()

    return max(list_regions(), key=rate_similarity)


def _report_format(field: str, value: str, allowed: str, example: str) -> Issue:
    message = f"'{value}' is invalid; allowed: {allowed}"
    return error("aws_format", f"aws.{field}", message, f"write for example `{field}: {example}`")
