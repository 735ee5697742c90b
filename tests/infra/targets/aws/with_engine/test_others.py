"""The remaining examples, one after the other in one account: up, up again without changes, teardown, nothing left."""

from __future__ import annotations

import json
from typing import Any

import pytest

from infra.targets.aws.names import prefixed
from tests.infra.targets.aws.with_engine.cloud_stack import CloudStack, written
from tests.infra.targets.aws.with_engine.conftest import MakeStack
from tests.infra.targets.aws.with_engine.everything import everything
from tests.moto_server import ACCOUNT, Moto

FULL, AUTOSCALED = "aws-full", "aws-p5-autoscaled"
# Every field at once includes a filesystem that exists beside a network that does not: the pre-flight knows better.
OPTIONS = {FULL: ["--no-preflight"], AUTOSCALED: []}
MAKES = {"Instances", "Vpcs", "fsx", "Budgets", "Policies", "LaunchTemplates", "Volumes"}


@pytest.fixture(scope="module", params=[FULL, AUTOSCALED])
def stack(request: pytest.FixtureRequest, make: MakeStack, account: Moto) -> CloudStack:
    """With storage that goes with the cluster, and of what it names by id that which is there."""
    spec = written(request.param)
    spec["storage"]["shared"]["keep"] = False
    return make(request.param, **(spec | named(spec, account) if request.param == FULL else spec))


@pytest.fixture(scope="module")
def before(stack: CloudStack) -> set[str]:
    return everything(stack.cloud)


def test_up(stack: CloudStack, before: set[str]) -> None:
    assert "ready: controller, login, " in stack.up(*OPTIONS[stack.name])
    assert {one.split()[0] for one in everything(stack.cloud) - before} >= MAKES


def test_up_again_changes_nothing(stack: CloudStack) -> None:
    made = everything(stack.cloud)
    stack.unchanged()
    assert everything(stack.cloud) == made


def test_teardown_leaves_what_was_there(stack: CloudStack, before: set[str], account: Moto) -> None:
    """Also when the money was spent: the budget has attached its policy then, and the engine knows nothing of it."""
    cluster = stack.spec["name"]
    denial = f"arn:aws:iam::{ACCOUNT}:policy/{prefixed(cluster, 'no-launch')}"
    account.client("iam").attach_role_policy(RoleName=prefixed(cluster, "controller"), PolicyArn=denial)
    assert f"nothing of cluster {stack.spec['name']} is left" in stack.teardown()
    assert everything(stack.cloud) == before


def named(spec: dict[str, Any], account: Moto) -> dict[str, Any]:
    """Sections of a spec with image, policy, key, reservation, bucket and filesystem of this account."""
    ec2, iam = account.client("ec2"), account.client("iam")
    allowed = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "*", "Resource": "*"}]}
    aws = spec["aws"] | {
        "ami": ec2.describe_images(Owners=["amazon"])["Images"][0]["ImageId"],
        "permissions_boundary": iam.create_policy(PolicyName="boundary", PolicyDocument=json.dumps(allowed))["Policy"][
            "Arn"
        ],
        "kms_key": account.client("kms").create_key()["KeyMetadata"]["Arn"],
    }
    reserved = ec2.create_capacity_reservation(
        InstanceType="p5en.48xlarge", InstancePlatform="Linux/UNIX", AvailabilityZone="us-east-1a", InstanceCount=2
    )["CapacityReservation"]["CapacityReservationId"]
    spec["groups"]["h200"]["capacity"]["reservation"] = reserved
    account.client("s3").create_bucket(Bucket="my-data")
    files = account.client("efs").create_file_system(CreationToken="theirs")["FileSystemId"]
    archive = spec["storage"]["archive"] | {"id": files}
    return {"aws": aws, "storage": spec["storage"] | {"archive": archive}}
