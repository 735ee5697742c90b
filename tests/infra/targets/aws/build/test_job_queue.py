"""The job queue of a cluster on AWS: a queue that cannot be queried never counts as idle."""

from __future__ import annotations

import json
from typing import Any

import pytest

from bootstrap.transport.base import Completed
from infra.resources.error import ResourceError
from infra.resources.job_queue import NoQueue, SlurmQueue, UnknownQueue
from infra.targets.aws import run_command
from infra.targets.aws.node import parameters
from infra.targets.aws.node.parameters import Report
from infra.targets.aws.queue import open_queue
from infra.targets.registry import read_spec as read
from tests.infra.targets.aws.build.capture import ROOT
from tests.moto_server import Moto

SPEC = read(ROOT / "stacks" / "Pulumi.aws-p5en-lustre.yaml")


def start_instance(aws: Moto, role: str, stack: str = "s") -> str:
    ec2 = aws.client("ec2")
    tags = {"muster.cluster": SPEC.name, "muster.stack": stack, "muster.role": role}
    specification = [
        {"ResourceType": "instance", "Tags": [{"Key": key, "Value": value} for key, value in tags.items()]}
    ]
    image = ec2.describe_images()["Images"][0]["ImageId"]
    response = ec2.run_instances(ImageId=image, MinCount=1, MaxCount=1, TagSpecifications=specification)
    return str(response["Instances"][0]["InstanceId"])


def put_report(aws: Moto, state: Any) -> None:
    text = Report(instance="i-1", state=state).model_dump_json()
    name = parameters.node(SPEC.name, "controller")
    aws.client("ssm").put_parameter(Name=name, Value=text, Type="String", Overwrite=True)


def test_without_instances_there_is_no_queue(aws: Moto) -> None:
    assert isinstance(open_queue("us-east-1", SPEC.name, "s"), NoQueue)


def test_instances_of_another_stack_are_ignored(aws: Moto) -> None:
    start_instance(aws, "controller", "another")
    put_report(aws, "ready")
    assert isinstance(open_queue("us-east-1", SPEC.name, "s"), NoQueue)


def test_a_controller_with_garbage_for_a_report_has_an_unknown_queue(aws: Moto) -> None:
    start_instance(aws, "controller")
    start_instance(aws, "compute")
    name = parameters.node(SPEC.name, "controller")
    aws.client("ssm").put_parameter(Name=name, Value="no report", Type="String")
    assert isinstance(open_queue("us-east-1", SPEC.name, "s"), UnknownQueue)


def test_a_failed_controller_has_an_unknown_queue(aws: Moto) -> None:
    start_instance(aws, "controller")
    start_instance(aws, "compute")
    put_report(aws, "failed")
    queue = open_queue("us-east-1", SPEC.name, "s")
    assert isinstance(queue, UnknownQueue)
    with pytest.raises(ResourceError, match="cannot check whether jobs are running on h200-1"):
        queue.jobs(["h200-1"])


def test_a_missing_controller_has_an_unknown_queue(aws: Moto) -> None:
    start_instance(aws, "compute")
    put_report(aws, "ready")
    with pytest.raises(ResourceError, match="cannot check whether jobs are running on h200-1: the controller is gone"):
        open_queue("us-east-1", SPEC.name, "s").jobs(["h200-1"])


def test_a_controller_that_was_never_ready_has_no_jobs(aws: Moto) -> None:
    start_instance(aws, "controller")
    assert isinstance(open_queue("us-east-1", SPEC.name, "s"), NoQueue)


def test_the_controller_is_queried_through_run_command(aws: Moto, monkeypatch: pytest.MonkeyPatch) -> None:
    controller = start_instance(aws, "controller")
    start_instance(aws, "compute")
    put_report(aws, "ready")
    calls: list[tuple[str, str]] = []

    def answer(region: str, instance: str, script: str, timeout_s: float) -> Completed:
        calls.append((region, instance))
        return Completed(0, "17 h200-1\n", "")

    monkeypatch.setattr(run_command, "run", answer)
    queue = open_queue("us-east-1", SPEC.name, "s")
    assert isinstance(queue, SlurmQueue)
    assert queue.jobs(["h200-1"]) == {"h200-1": ["17"]}
    assert calls == [("us-east-1", controller)]


@pytest.mark.parametrize(("timeout_s", "start_timeout_s"), [(5.0, 30), (90.0, 90)])
def test_commands_expire_when_the_caller_stops_waiting(aws: Moto, timeout_s: float, start_timeout_s: int) -> None:
    run_command.run("us-east-1", start_instance(aws, "controller"), "true", timeout_s)
    (sent,) = aws.of("SendCommand")
    request = json.loads(sent.params["body"])
    assert (request["TimeoutSeconds"], request["Parameters"]["executionTimeout"]) == (
        start_timeout_s,
        [f"{timeout_s:g}"],
    )
