"""The job queue of a cluster on AWS: tags and reports show whether it can be queried, Run Command queries it."""

from __future__ import annotations

from dataclasses import dataclass

from botocore.exceptions import ClientError

from bootstrap.transport.base import Completed
from cluster import names
from infra.resources.job_queue import JobQueue, NoQueue, QueueSigns, SlurmQueue, UnknownQueue, judge_queue
from infra.targets.aws import run_command
from infra.targets.aws.client import create_client
from infra.targets.aws.instances import list_instances, translate_errors
from infra.targets.aws.node import parameters
from infra.targets.aws.node.parameters import Report, parse_report


def open_queue(region: str, cluster: str, stack: str) -> JobQueue:
    """Return the job queue of a cluster, or why it cannot be queried."""
    with translate_errors("the job queue", region):
        instance_by_role = {instance.role: instance for instance in list_instances(region, cluster, stack)}
        report = _read_report(region, cluster)
    controller = instance_by_role.get(names.CONTROLLER)
    runs = controller is not None and controller.state == "running"
    signs = QueueSigns(
        # The queue outlives the machine because it is on its own volume.
        controller=bool(controller or report),
        daemon=bool(runs and report and report.state == "ready"),
        compute="compute" in instance_by_role,
        bootstrapped=report is not None,
    )
    verdict = judge_queue(signs)
    if verdict == "idle":
        return NoQueue()
    if controller is None:
        return UnknownQueue("the controller is gone")
    if verdict == "unknown":
        return UnknownQueue(f"the controller {'has not reported ready' if runs else f'is {controller.state}'}")
    return SlurmQueue(lambda: _Shell(region, controller.id))


@dataclass(frozen=True)
class _Shell:
    region: str
    instance: str

    def run(self, script: str, *, timeout: float) -> Completed:
        return run_command.run(self.region, self.instance, script, timeout)

    def close(self) -> None:
        """Do nothing: Run Command holds no connection."""


def _read_report(region: str, cluster: str) -> Report | None:
    try:
        response = create_client("ssm", region).get_parameter(Name=parameters.node(cluster, names.CONTROLLER))
    except ClientError as error:
        if error.response["Error"]["Code"] != "ParameterNotFound":
            raise
        return None
    return parse_report(response["Parameter"]["Value"])
