"""Dry-run launches of each instance type; nothing is ever started."""

from __future__ import annotations

import pytest

from infra.targets.aws.preflight import launches
from infra.targets.aws.preflight.account import Identity
from infra.targets.aws.preflight.subject import Subject
from tests.infra.targets.aws.preflight.conftest import CannedAws
from tests.infra.targets.aws.preflight.issue_text import format_issues
from tests.infra.targets.aws.specs import spec
from tests.moto_server import Moto

ANN = "arn:aws:iam::123456789012:user/ann"
ME = Identity("123456789012", ANN)
AT = "groups.gpu.instance_type"


@pytest.mark.parametrize("code", ["DryRunOperation", "VPCIdNotSpecified", "VcpuLimitExceeded", "InvalidAMIID.NotFound"])
def test_codes_of_success_or_of_other_checks_give_no_issue(code: str) -> None:
    assert format_issues(launches.judge(ANN, AT, "p5.48xlarge", code)) == []


@pytest.mark.parametrize(
    ("code", "message"),
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
def test_each_refusal_code_has_its_message(code: str, message: str) -> None:
    assert format_issues(launches.judge(ANN, AT, "p5.48xlarge", code)) == [message]


def test_each_type_is_tried_once_and_nothing_starts(canned_aws: CannedAws, aws: Moto) -> None:
    image = aws.client("ec2").describe_images(Owners=["amazon"])["Images"][0]["ImageId"]
    canned_aws.answer("ssm", "GetParameter", {"Parameter": {"Value": image}})
    groups = {name: {"instance_type": "g6.8xlarge", "count": 1} for name in ("a", "b")}
    assert format_issues(launches.check_launches(Subject(spec(groups=groups), canned_aws.account, ME))) == []
    launches_tried = aws.of("RunInstances")
    assert sorted(call.params["InstanceType"] for call in launches_tried) == ["g6.8xlarge", "m7i.large", "m7i.xlarge"]
    assert {call.params["DryRun"] for call in launches_tried} == {"true"}
    assert aws.client("ec2").describe_instances()["Reservations"] == []


def test_every_refused_instance_type_is_reported(canned_aws: CannedAws, aws: Moto) -> None:
    canned_aws.answer("ssm", "GetParameter", {"Parameter": {"Value": "ami-0123456789abcdef0"}})
    aws.fail("RunInstances", "UnauthorizedOperation", times=3)
    messages = format_issues(launches.check_launches(Subject(spec(), canned_aws.account, ME)))
    assert [line.split(" ")[2] for line in messages] == ["controller.instance_type:", "login.instance_type:", f"{AT}:"]
    assert all(line.startswith("error launch_refused") for line in messages)


def test_a_type_is_tried_with_the_image_of_its_group(canned_aws: CannedAws, aws: Moto) -> None:
    image, own = (image["ImageId"] for image in aws.client("ec2").describe_images(Owners=["amazon"])["Images"][:2])
    canned_aws.answer("ssm", "GetParameter", {"Parameter": {"Value": image}})
    groups = {"a": {"instance_type": "g6.8xlarge", "count": 1, "image": own}}
    assert format_issues(launches.check_launches(Subject(spec(groups=groups), canned_aws.account, ME))) == []
    used = {call.params["InstanceType"]: call.params["ImageId"] for call in aws.of("RunInstances")}
    assert used == {"g6.8xlarge": own, "m7i.large": image, "m7i.xlarge": image}


@pytest.mark.parametrize("section", [True, False])
def test_a_type_is_tried_with_every_image_that_it_starts_from(canned_aws: CannedAws, aws: Moto, section: bool) -> None:
    listed = aws.client("ec2").describe_images(Owners=["amazon"])["Images"][:3]
    image, own, named = (image["ImageId"] for image in listed)
    canned_aws.answer("ssm", "GetParameter", {"Parameter": {"Value": image}})
    g6, p5 = {"instance_type": "g6.8xlarge", "count": 1}, {"instance_type": "p5.48xlarge", "count": 1}
    groups = {"a": g6, "b": {**g6, "image": own}, "c": g6, "d": {**p5, "image": own}}
    described = spec(groups=groups, aws={"region": "us-east-1", **({"ami": named} if section else {})})
    assert format_issues(launches.check_launches(Subject(described, canned_aws.account, ME))) == []
    tried = [(call.params["InstanceType"], call.params["ImageId"]) for call in aws.of("RunInstances")]
    assert sorted(tried) == sorted(
        [
            ("g6.8xlarge", named if section else image),
            ("g6.8xlarge", own),
            ("p5.48xlarge", own),
            ("m7i.large", image),
            ("m7i.xlarge", image),
        ]
    )
