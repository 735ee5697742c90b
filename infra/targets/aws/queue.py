"""The job queue of a cluster on AWS: whether it can be asked is seen by tags and reports, asked through Run Command."""

from __future__ import annotations

from dataclasses import dataclass

from botocore.exceptions import ClientError

from bootstrap.transport.base import Completed
from cluster import names
from infra.resources.job_queue import JobQueue, NoQueue, QueueSigns, SlurmQueue, UnknownQueue, judge_queue
from infra.targets.aws import run_command
from infra.targets.aws.client import client
from infra.targets.aws.instances import asking, instances
from infra.targets.aws.node import parameters
from infra.targets.aws.node.parameters import Report


def queue_at(region: str, cluster: str, stack: str) -> JobQueue:
    with asking("the job queue", region):
        roles = {one.role: one for one in instances(region, cluster, stack)}
        report = _report(region, cluster)
    controller = roles.get(names.CONTROLLER)
    works = controller is not None and controller.state == "running"
    signs = QueueSigns(
        # The queue outlives the machine: it is on a volume of its own.
        controller=bool(controller or report),
        daemon=bool(works and report and report.state == "ready"),
        compute="compute" in roles,
        bootstrapped=report is not None,
    )
    found = judge_queue(signs)
    if found == "idle":
        return NoQueue()
    if controller is None:
        return UnknownQueue("the controller is gone")
    if found == "unknown":
        return UnknownQueue(f"the controller {'has not said that it is ready' if works else f'is {controller.state}'}")
    return SlurmQueue(lambda: _Shell(region, controller.id))


@dataclass(frozen=True)
class _Shell:
    region: str
    instance: str

    def run(self, script: str, *, timeout: float) -> Completed:
        return run_command.run(self.region, self.instance, script, timeout)

    def close(self) -> None:
        """Nothing is held open."""


def _report(region: str, cluster: str) -> Report | None:
    try:
        found = client("ssm", region).get_parameter(Name=parameters.node(cluster, names.CONTROLLER))
    except ClientError as error:
        if error.response["Error"]["Code"] != "ParameterNotFound":
            raise
        return None
    return Report.model_validate_json(found["Parameter"]["Value"])
