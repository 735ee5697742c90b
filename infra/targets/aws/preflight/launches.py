"""Checks by dry run: EC2 checks the launch of each instance type without starting any."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from botocore.exceptions import ClientError

from cluster import names
from cluster.catalog.instances import InstanceType, instance
from cluster.spec import ClusterSpec
from cluster.spec.issue import Issue, error, warning
from infra.targets.aws.plan import images
from infra.targets.aws.preflight.images import read_image_parameter
from infra.targets.aws.preflight.subject import Subject
from infra.targets.aws.validate.types import list_type_names, machine_of

_WOULD_SUCCEED = "DryRunOperation"
_REFUSED = ("UnauthorizedOperation", "AccessDenied")
_ACCOUNT_NOT_READY = ("OptInRequired", "PendingVerification", "Blocked")
# Other checks report these, or they are about a network that does not exist yet.
_REPORTED_ELSEWHERE = (
    "InvalidAMIID.NotFound",
    "InvalidSubnetID.NotFound",
    "VPCIdNotSpecified",
    "MissingInput",
    "VcpuLimitExceeded",
    "MaxSpotInstanceCountExceeded",
)


def check_launches(subject: Subject) -> Iterator[Issue]:
    """Report instance types that the account cannot launch, each with every image that its machines start from."""
    where_by_launch: dict[tuple[str, str], str] = {}
    for where, name in list_type_names(subject.spec).items():
        if source := _find_source(subject.spec, where, instance(name)):
            where_by_launch.setdefault((name, source), where)
    for (name, source), where in where_by_launch.items():
        image = read_image_parameter(subject, source) if source.startswith("/") else source
        if image is not None:
            yield from judge(subject.identity.arn, where, name, _try_launch(subject, instance(name), image))


def judge(arn: str, where: str, name: str, code: str) -> Iterator[Issue]:
    """Yield the issue that the error code of a dry run means."""
    if code == _WOULD_SUCCEED or code in _REPORTED_ELSEWHERE:
        return
    if code in _REFUSED:
        message = f"{arn} may not launch {name} (RunInstances, dry run: {code})"
        yield error(
            "launch_refused", where, message, "allow ec2:RunInstances; check for limits on types, regions and tags"
        )
    elif code in _ACCOUNT_NOT_READY:
        message = f"the account may not launch {name} ({code})"
        yield error("account_not_ready", where, message, "check the account's e-mails and support cases")
    else:
        message = f"a dry run of {name} ended in {code}: whether it can be launched could not be checked"
        yield warning("launch_unclear", where, message, "`make up` may fail on it; the code says why")


def _try_launch(subject: Subject, machine: InstanceType, image: str) -> str:
    """Return the error code of a dry run."""
    subnets = subject.spec.network.subnet_ids
    request: Mapping[str, Any] = {
        "ImageId": image,
        "InstanceType": machine.name,
        "MinCount": 1,
        "MaxCount": 1,
        "DryRun": True,
        "TagSpecifications": [
            {"ResourceType": "instance", "Tags": [{"Key": names.CLUSTER, "Value": subject.spec.name}]}
        ],
        **({"SubnetId": subnets[0]} if subnets else {}),
    }
    try:
        subject.client("ec2").run_instances(**request)
    except ClientError as failure:
        return str(failure.response["Error"]["Code"])
    raise AssertionError("EC2 started an instance in a dry run")


def _find_source(spec: ClusterSpec, where: str, machine: InstanceType) -> str | None:
    """Return the image of machines whose type a property names, or the parameter of AWS that names the image."""
    group = spec.groups.get(machine_of(where).removeprefix("groups."))
    own_image = group.image if group else None
    return own_image or images.given(spec, machine) or images.parameters(spec).get(images.kind(machine))
