"""A launch of each kind of machine as EC2's own dry run: everything is checked, nothing is started."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from botocore.exceptions import ClientError

from cluster import names
from cluster.catalog.instances import InstanceType, instance
from cluster.spec.issue import Issue, error, warning
from infra.targets.aws.plan import images
from infra.targets.aws.preflight.images import named as image_named
from infra.targets.aws.preflight.subject import Subject
from infra.targets.aws.validate.types import named

_WOULD_WORK = "DryRunOperation"
_REFUSED = ("UnauthorizedOperation", "AccessDenied")
_ACCOUNT = ("OptInRequired", "PendingVerification", "Blocked")
# Other checks speak of these, or they are of a network that does not exist yet.
_ELSEWHERE = (
    "InvalidAMIID.NotFound",
    "InvalidSubnetID.NotFound",
    "VPCIdNotSpecified",
    "MissingInput",
    "VcpuLimitExceeded",
    "MaxSpotInstanceCountExceeded",
)


def possible(subject: Subject) -> Iterator[Issue]:
    where_of: dict[str, str] = {}
    for where, name in named(subject.spec).items():
        where_of.setdefault(name, where)
    for name, where in where_of.items():
        found = instance(name)
        image = _image(subject, found)
        if image is not None:
            yield from judge(subject.identity.arn, f"{where}.instance_type", name, _tried(subject, found, image))


def judge(arn: str, where: str, name: str, code: str) -> Iterator[Issue]:
    if code == _WOULD_WORK or code in _ELSEWHERE:
        return
    if code in _REFUSED:
        message = f"{arn} may not launch {name} (RunInstances, dry run: {code})"
        yield error(
            "launch_refused", where, message, "allow ec2:RunInstances; look for limits on types, regions and tags"
        )
    elif code in _ACCOUNT:
        message = f"the account may not launch {name} ({code})"
        yield error("account_not_ready", where, message, "look into the account's e-mails and support cases")
    else:
        message = f"a dry run of {name} ended in {code}: whether it can be launched could not be judged"
        yield warning("launch_unclear", where, message, "`make up` may fail on it; the code says why")


def _tried(subject: Subject, found: InstanceType, image: str) -> str:
    subnets = subject.spec.network.subnet_ids
    asked: Mapping[str, Any] = {
        "ImageId": image,
        "InstanceType": found.name,
        "MinCount": 1,
        "MaxCount": 1,
        "DryRun": True,
        "TagSpecifications": [
            {"ResourceType": "instance", "Tags": [{"Key": names.CLUSTER, "Value": subject.spec.name}]}
        ],
        **({"SubnetId": subnets[0]} if subnets else {}),
    }
    try:
        subject.client("ec2").run_instances(**asked)
    except ClientError as failure:
        return str(failure.response["Error"]["Code"])
    raise AssertionError("EC2 answered a dry run with a machine")


def _image(subject: Subject, found: InstanceType) -> str | None:
    given = images.given(subject.spec, found)
    return given or image_named(subject, images.parameters(subject.spec)[images.kind(found)])
