"""The planned end of a permanent machine: daemons first, then the machine, and only the one of that node."""

from __future__ import annotations

import pytest

from bootstrap.transport.base import Completed, TransportError
from infra.resources.error import ResourceError
from infra.targets.aws import run_command
from infra.targets.aws.images.permanent_machine import end_machine
from infra.targets.target import Deployment
from tests.moto_server import REGION, Moto

HERE = Deployment("demo", "s", REGION)


def launch(aws: Moto, node: str) -> str:
    tags = {"muster.cluster": "demo", "muster.stack": "s", "muster.node": node, "muster.role": node}
    specification = [{"ResourceType": "instance", "Tags": [{"Key": k, "Value": v} for k, v in tags.items()]}]
    ec2 = aws.client("ec2")
    image = ec2.describe_images(Owners=["amazon"])["Images"][0]["ImageId"]
    launched = ec2.run_instances(ImageId=image, MinCount=1, MaxCount=1, TagSpecifications=specification)
    return str(launched["Instances"][0]["InstanceId"])


def read_state(aws: Moto, instance: str) -> str:
    (reservation,) = aws.client("ec2").describe_instances(InstanceIds=[instance])["Reservations"]
    return str(reservation["Instances"][0]["State"]["Name"])


@pytest.mark.parametrize("answers", [True, False])
def test_the_daemons_of_a_controller_stop_first(
    aws: Moto,
    monkeypatch: pytest.MonkeyPatch,
    answers: bool,
) -> None:
    controller, login = launch(aws, "controller"), launch(aws, "login")
    scripts: list[tuple[str, str]] = []

    def run(_region: str, instance: str, script: str, _timeout_s: float) -> Completed:
        scripts.append((read_state(aws, instance), script))
        if not answers:
            raise TransportError(instance, "no answer")
        return Completed(0, "", "")

    monkeypatch.setattr(run_command, "run", run)
    end_machine(HERE, "controller", sleep=lambda _seconds: None)
    assert scripts == [("running", "systemctl stop slurmctld slurmdbd mariadb && sync")]
    assert (read_state(aws, controller), read_state(aws, login)) == ("terminated", "running")
    end_machine(HERE, "login", sleep=lambda _seconds: None)
    assert read_state(aws, login) == "terminated"
    assert len(scripts) == 1


@pytest.mark.parametrize(
    ("node", "scripts"),
    [
        (
            "controller",
            [
                "systemctl stop slurmctld slurmdbd mariadb && sync",
                "systemctl start mariadb && systemctl start slurmdbd && systemctl start slurmctld",
            ],
        ),
        ("login", []),
    ],
)
@pytest.mark.parametrize(
    ("code", "fix"),
    [
        ("UnauthorizedOperation", "use credentials of the cluster's account"),
        ("OperationNotPermitted", "remove the cause that it names, then run the command again"),
    ],
)
def test_a_machine_that_aws_does_not_terminate_works_on(
    aws: Moto,
    monkeypatch: pytest.MonkeyPatch,
    node: str,
    scripts: list[str],
    code: str,
    fix: str,
) -> None:
    machine = launch(aws, node)
    ran: list[str] = []

    def run(_region: str, _instance: str, script: str, _timeout_s: float) -> Completed:
        ran.append(script)
        return Completed(0, "", "")

    monkeypatch.setattr(run_command, "run", run)
    aws.fail("TerminateInstances", code)
    with pytest.raises(ResourceError) as refused:
        end_machine(HERE, node, sleep=lambda _seconds: None)
    assert f"the machine of {node}: AWS refused TerminateInstances in {REGION}: {code}" in str(refused.value)
    assert fix in str(refused.value)
    assert (ran, read_state(aws, machine)) == (scripts, "running")
