"""Dry runs: EC2's word on each kind of machine; nothing is ever started."""

from __future__ import annotations

import pytest

from infra.targets.aws.preflight import launches
from infra.targets.aws.preflight.account import Identity
from infra.targets.aws.preflight.subject import Subject
from tests.infra.targets.aws.preflight.conftest import Answered
from tests.infra.targets.aws.preflight.words import words
from tests.infra.targets.aws.specs import spec
from tests.moto_server import Moto

ANN = "arn:aws:iam::123456789012:user/ann"
ME = Identity("123456789012", ANN)
AT = "groups.gpu.instance_type"


@pytest.mark.parametrize("code", ["DryRunOperation", "VPCIdNotSpecified", "VcpuLimitExceeded", "InvalidAMIID.NotFound"])
def test_what_works_or_is_said_elsewhere(code: str) -> None:
    assert words(launches.judge(ANN, AT, "p5.48xlarge", code)) == []


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (
            "UnauthorizedOperation",
            f"error launch_refused {AT}: {ANN} may not launch p5.48xlarge (RunInstances, dry run: "
            "UnauthorizedOperation); "
            "fix: allow ec2:RunInstances; check for limits on types, regions and tags",
        ),
        (
            "PendingVerification",
            f"error account_not_ready {AT}: the account may not launch p5.48xlarge (PendingVerification); "
            "fix: check the account's e-mails and support cases",
        ),
        (
            "InvalidParameterCombination",
            f"warning launch_unclear {AT}: a dry run of p5.48xlarge ended in InvalidParameterCombination: whether it "
            "can be "
            "launched could not be checked; fix: `make up` may fail on it; the code says why",
        ),
    ],
)
def test_what_does_not(code: str, said: str) -> None:
    assert words(launches.judge(ANN, AT, "p5.48xlarge", code)) == [said]


def test_each_type_is_tried_once_and_nothing_starts(answered: Answered, aws: Moto) -> None:
    image = aws.client("ec2").describe_images(Owners=["amazon"])["Images"][0]["ImageId"]
    answered.answer("ssm", "GetParameter", {"Parameter": {"Value": image}})
    two = {name: {"instance_type": "g6.8xlarge", "count": 1} for name in ("a", "b")}
    assert words(launches.check_launches(Subject(spec(groups=two), answered.account, ME))) == []
    tried = aws.of("RunInstances")
    assert sorted(call.params["InstanceType"] for call in tried) == ["g6.8xlarge", "m7i.large", "m7i.xlarge"]
    assert {call.params["DryRun"] for call in tried} == {"true"}
    assert aws.client("ec2").describe_instances()["Reservations"] == []


def test_a_refusal_names_who_and_what(answered: Answered, aws: Moto) -> None:
    answered.answer("ssm", "GetParameter", {"Parameter": {"Value": "ami-0123456789abcdef0"}})
    aws.fail("RunInstances", "UnauthorizedOperation", times=3)
    said = words(launches.check_launches(Subject(spec(), answered.account, ME)))
    assert [line.split(" ")[2] for line in said] == ["controller.instance_type:", "login.instance_type:", f"{AT}:"]
    assert all(line.startswith("error launch_refused") for line in said)
