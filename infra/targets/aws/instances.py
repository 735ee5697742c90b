"""The instances of a cluster that EC2 lists by tag: permanent ones and those that Slurm launches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from cluster import names
from infra.resources.error import ResourceError
from infra.targets.aws.client import create_client
from infra.targets.aws.launcher.errors import classify_error
from infra.targets.aws.launcher.instances import STATES
from infra.targets.aws.launcher.node_names import read_node_name
from slurm.power.launcher import FaultKind

_FIXES: Mapping[FaultKind, str] = {
    "permission": (
        "use credentials of the cluster's account (`aws sts get-caller-identity` shows whose are in use), "
        "then run the command again"
    ),
    "throttle": "run the command again in a minute; check the network if this persists",
}

_QUERIES = ("Describe", "Get", "List", "Head")


@dataclass(frozen=True)
class Instance:
    """An EC2 instance of a cluster."""

    id: str
    name: str
    """Name of the node; empty if the instance has the cluster's tags but no name."""
    role: str
    state: str
    """The state as EC2 names it."""
    launched: datetime


def list_instances(region: str, cluster: str, stack: str) -> list[Instance]:
    """Return the instances that are not terminating; running ones last, to replace others with the same name."""
    values_by_filter = {
        f"tag:{names.CLUSTER}": [cluster],
        f"tag:{names.STACK}": [stack],
        "instance-state-name": list(STATES),
    }
    filters = [{"Name": name, "Values": values} for name, values in values_by_filter.items()]
    pages = create_client("ec2", region).get_paginator("describe_instances").paginate(Filters=filters)
    instances = (
        _to_instance(item)
        for page in pages
        for reservation in page["Reservations"]
        for item in reservation["Instances"]
    )
    return sorted(instances, key=lambda instance: (instance.state == "running", instance.launched))


@contextmanager
def translate_errors(what: str, region: str) -> Iterator[None]:
    """Raise errors of AWS's libraries as a ResourceError that says what could not be queried, or which call failed."""
    try:
        yield
    except (ClientError, BotoCoreError) as error:
        reason = error.response["Error"]["Code"] if isinstance(error, ClientError) else str(error)
        kind = classify_error(error).kind
        if kind == "broken" and isinstance(error, BotoCoreError):
            # AWS's library has no credentials or no region.
            kind = "permission"
        fix = _FIXES.get(kind, "remove the cause that it names, then run the command again")
        problem = f"{what} cannot be queried in {region}: {reason}"
        if isinstance(error, ClientError) and not error.operation_name.startswith(_QUERIES):
            problem = f"{what}: AWS refused {error.operation_name} in {region}: {reason}"
        raise ResourceError("", problem, fix) from error


def _to_instance(item: dict[str, Any]) -> Instance:
    tags = {tag["Key"]: str(tag["Value"]) for tag in item.get("Tags", [])}
    return Instance(
        id=item["InstanceId"],
        name=read_node_name(tags, item["AmiLaunchIndex"]) or "",
        role=tags.get(names.ROLE, ""),
        state=item["State"]["Name"],
        launched=item["LaunchTime"].astimezone(UTC),
    )
