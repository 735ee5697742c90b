"""The job queue of a cluster on AWS: asked where it can be, never taken for idle where it cannot."""

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
from tests.moto_server import Moto, aws, moto  # noqa: F401  # fixtures

SPEC = read(ROOT / "stacks" / "Pulumi.aws-p5en-lustre.yaml")


def start(aws: Moto, role: str, stack: str = "s") -> str:  # noqa: F811
    ec2 = aws.client("ec2")
    tags = {"muster.cluster": SPEC.name, "muster.stack": stack, "muster.role": role}
    specification = [
        {"ResourceType": "instance", "Tags": [{"Key": key, "Value": value} for key, value in tags.items()]}
    ]
    image = ec2.describe_images()["Images"][0]["ImageId"]
    response = ec2.run_instances(ImageId=image, MinCount=1, MaxCount=1, TagSpecifications=specification)
    return str(response["Instances"][0]["InstanceId"])


def report(aws: Moto, state: Any) -> None:  # noqa: F811
    text = Report(instance="i-1", state=state).model_dump_json()
    name = parameters.node(SPEC.name, "controller")
    aws.client("ssm").put_parameter(Name=name, Value=text, Type="String", Overwrite=True)


def test_where_nothing_exists_nothing_runs(aws: Moto) -> None:  # noqa: F811
    assert isinstance(open_queue("us-east-1", SPEC.name, "s"), NoQueue)


def test_machines_of_another_stack_are_not_ours(aws: Moto) -> None:  # noqa: F811
    start(aws, "controller", "another")
    report(aws, "ready")
    assert isinstance(open_queue("us-east-1", SPEC.name, "s"), NoQueue)


def test_a_controller_that_broke_is_not_idle(aws: Moto) -> None:  # noqa: F811
    start(aws, "controller")
    start(aws, "compute")
    report(aws, "failed")
    queue = open_queue("us-east-1", SPEC.name, "s")
    assert isinstance(queue, UnknownQueue)
    with pytest.raises(ResourceError, match="cannot check whether jobs are running on h200-1"):
        queue.jobs(["h200-1"])


def test_a_controller_that_is_gone_left_its_queue(aws: Moto) -> None:  # noqa: F811
    start(aws, "compute")
    report(aws, "ready")
    with pytest.raises(ResourceError, match="cannot check whether jobs are running on h200-1: the controller is gone"):
        open_queue("us-east-1", SPEC.name, "s").jobs(["h200-1"])


def test_one_that_never_came_up_has_no_jobs(aws: Moto) -> None:  # noqa: F811
    start(aws, "controller")
    assert isinstance(open_queue("us-east-1", SPEC.name, "s"), NoQueue)


def test_the_controller_is_asked_through_run_command(aws: Moto, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    controller = start(aws, "controller")
    start(aws, "compute")
    report(aws, "ready")
    calls: list[tuple[str, str]] = []

    def answer(region: str, instance: str, script: str, timeout_s: float) -> Completed:
        calls.append((region, instance))
        return Completed(0, "h200-1 17\n", "")

    monkeypatch.setattr(run_command, "run", answer)
    queue = open_queue("us-east-1", SPEC.name, "s")
    assert isinstance(queue, SlurmQueue)
    assert queue.jobs(["h200-1"]) == {"h200-1": ["17"]}
    assert calls == [("us-east-1", controller)]


@pytest.mark.parametrize(("patience_s", "begins_within_s"), [(5.0, 30), (90.0, 90)])
def test_a_script_that_was_given_up_is_not_begun_later(aws: Moto, patience_s: float, begins_within_s: int) -> None:  # noqa: F811
    run_command.run("us-east-1", start(aws, "controller"), "true", patience_s)
    (sent,) = aws.of("SendCommand")
    request = json.loads(sent.params["body"])
    assert (request["TimeoutSeconds"], request["Parameters"]["executionTimeout"]) == (
        begins_within_s,
        [f"{patience_s:g}"],
    )
