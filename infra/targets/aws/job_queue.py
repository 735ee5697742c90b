"""The job queue of a cluster on AWS: whether it can be asked is seen by tags and reports, asked through Run Command."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from botocore.exceptions import ClientError

from bootstrap.transport.base import Completed
from infra.inventory import parameters
from infra.inventory.parameters import Report
from infra.plan import names
from infra.providers.job_queue import JobQueue, NoQueue, Seen, SlurmQueue, UnknownQueue, verdict
from infra.spec import ClusterSpec
from infra.targets.aws import run_command
from infra.targets.aws.client import client

_THERE = ("pending", "running", "stopping", "stopped")


def queue(spec: ClusterSpec, stack: str) -> JobQueue:
    region = spec.aws.region if spec.aws else ""
    roles = _machines(region, spec.name, stack)
    controller = roles.get(names.CONTROLLER, "")
    report = _report(region, spec.name)
    seen = Seen(
        # The queue outlives the machine: it is on a volume of its own.
        controller=bool(controller or report),
        daemon=bool(controller and report and report.state == "ready"),
        compute="compute" in roles,
        bootstrapped=report is not None,
    )
    found = verdict(seen)
    if found == "idle":
        return NoQueue()
    if found == "unknown":
        return UnknownQueue("the controller has not said that it is ready" if controller else "the controller is gone")
    return SlurmQueue(lambda: _Shell(region, controller))


@dataclass(frozen=True)
class _Shell:
    region: str
    instance: str

    def run(self, script: str, *, timeout: float) -> Completed:
        return run_command.run(self.region, self.instance, script, timeout)

    def close(self) -> None:
        """Nothing is held open."""


def _machines(region: str, cluster: str, stack: str) -> dict[str, str]:
    """One instance of each role that there is."""
    wanted = {f"tag:{names.CLUSTER}": [cluster], f"tag:{names.STACK}": [stack], "instance-state-name": list(_THERE)}
    filters = [{"Name": name, "Values": values} for name, values in wanted.items()]
    pages = client("ec2", region).get_paginator("describe_instances").paginate(Filters=filters)
    machines = (one for page in pages for group in page["Reservations"] for one in group["Instances"])
    return {_role(one): one["InstanceId"] for one in machines}


def _role(machine: dict[str, Any]) -> str:
    return next((str(tag["Value"]) for tag in machine["Tags"] if tag["Key"] == names.ROLE), "")


def _report(region: str, cluster: str) -> Report | None:
    try:
        found = client("ssm", region).get_parameter(Name=parameters.node(cluster, names.CONTROLLER))
    except ClientError as error:
        if error.response["Error"]["Code"] != "ParameterNotFound":
            raise
        return None
    return Report.model_validate_json(found["Parameter"]["Value"])
