"""The machines of a cluster as EC2 tells them now, by tag: those that stay and those that come and go."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from cluster import names
from infra.resources.problem import Problem
from infra.targets.aws.client import client
from infra.targets.aws.launcher.instances import STATES
from infra.targets.aws.launcher.node_names import read_node_name


@dataclass(frozen=True)
class Instance:
    id: str
    name: str
    """Of the node; empty for one that carries our tags and no name."""
    role: str
    state: str
    """EC2's word."""
    launched: datetime


def instances(region: str, cluster: str, stack: str) -> list[Instance]:
    """Without those on their way out; of two with one name the one that runs comes last."""
    wanted = {f"tag:{names.CLUSTER}": [cluster], f"tag:{names.STACK}": [stack], "instance-state-name": list(STATES)}
    filters = [{"Name": name, "Values": values} for name, values in wanted.items()]
    pages = client("ec2", region).get_paginator("describe_instances").paginate(Filters=filters)
    found = (_instance(one) for page in pages for group in page["Reservations"] for one in group["Instances"])
    return sorted(found, key=lambda one: (one.state == "running", one.launched))


@contextmanager
def asking(what: str, region: str) -> Iterator[None]:
    """A refusal of AWS, or no way to it, as one message."""
    try:
        yield
    except (ClientError, BotoCoreError) as failure:
        said = failure.response["Error"]["Code"] if isinstance(failure, ClientError) else str(failure)
        fix = "credentials of the account that the cluster is in (`aws sts get-caller-identity` shows whose they are)"
        raise Problem("", f"{what} cannot be asked in {region}: {said}", fix) from failure


def _instance(raw: dict[str, Any]) -> Instance:
    tags = {tag["Key"]: str(tag["Value"]) for tag in raw.get("Tags", [])}
    return Instance(
        id=raw["InstanceId"],
        name=read_node_name(tags, raw["AmiLaunchIndex"]) or "",
        role=tags.get(names.ROLE, ""),
        state=raw["State"]["Name"],
        launched=raw["LaunchTime"].astimezone(UTC),
    )
