"""The remaining examples in one account: up, a second up without changes, teardown, nothing left."""

from __future__ import annotations

import json
from typing import Any

import pytest
from botocore.exceptions import ClientError

from infra.targets.aws.names import prefixed
from infra.targets.aws.rehearse.account_resources import list_resources
from tests.infra.targets.aws.with_engine.cloud_stack import CloudStack, read_example
from tests.infra.targets.aws.with_engine.conftest import MakeStack
from tests.moto_server import ACCOUNT, Moto

FULL, AUTOSCALED = "aws-full", "aws-p5-autoscaled"
EXTRA_POLICY = "read-data"
EXPECTED_KINDS = {"Instances", "Vpcs", "fsx", "Budgets", "Policies", "LaunchTemplates", "Volumes"}


@pytest.fixture(scope="module", params=[FULL, pytest.param(AUTOSCALED, marks=pytest.mark.nightly)])
def stack(request: pytest.FixtureRequest, make_stack: MakeStack, account: Moto) -> CloudStack:
    """Return an example whose storage is not kept and whose ids exist in this account."""
    spec = read_example(request.param)
    spec["storage"]["shared"]["keep"] = False
    return make_stack(request.param, **(spec | existing_resources(spec, account) if request.param == FULL else spec))


@pytest.fixture(scope="module")
def before(stack: CloudStack) -> set[str]:
    return list_resources(stack.cloud)


def test_up_creates_every_kind(stack: CloudStack, before: set[str]) -> None:
    assert "ready: controller, login, " in stack.up()
    assert {resource.split()[0] for resource in list_resources(stack.cloud) - before} >= EXPECTED_KINDS


def test_policies_of_the_spec_are_attached(stack: CloudStack, account: Moto) -> None:
    for role in stack.spec["aws"].get("policies", ()):
        answer = account.client("iam").list_attached_role_policies(RoleName=prefixed(stack.spec["name"], role))
        assert [policy["PolicyName"] for policy in answer["AttachedPolicies"]] == [EXTRA_POLICY]


def test_backups_of_the_spec_are_configured(stack: CloudStack, account: Moto) -> None:
    policies = list_lifecycle_policies(account, stack.spec["name"])
    assert len(policies) == ("state_backup_days" in stack.spec["aws"])
    for policy in policies:
        details = account.client("dlm").get_lifecycle_policy(PolicyId=policy)["Policy"]["PolicyDetails"]
        assert details["Schedules"][0]["RetainRule"]["Count"] == stack.spec["aws"]["state_backup_days"]
    efs = account.client("efs")
    states = [backup_state(efs, system["FileSystemId"]) for system in efs.describe_file_systems()["FileSystems"]]
    backed_up = [storage for storage in stack.spec["storage"].values() if storage.get("backup_days")]
    assert states.count("ENABLED") == len(backed_up)


def test_second_up_changes_nothing(stack: CloudStack) -> None:
    before_second_up = list_resources(stack.cloud)
    stack.unchanged()
    assert list_resources(stack.cloud) == before_second_up


def test_teardown_removes_everything(stack: CloudStack, before: set[str], account: Moto) -> None:
    """This includes the policy that a spent budget attaches without the engine knowing of it."""
    cluster = stack.spec["name"]
    denial = f"arn:aws:iam::{ACCOUNT}:policy/{prefixed(cluster, 'no-launch')}"
    account.client("iam").attach_role_policy(RoleName=prefixed(cluster, "controller"), PolicyArn=denial)
    assert f"nothing of cluster {stack.spec['name']} is left" in stack.teardown()
    assert list_resources(stack.cloud) == before
    assert list_lifecycle_policies(account, cluster) == []


def list_lifecycle_policies(account: Moto, cluster: str) -> list[str]:
    filters = {"ResourceTypeFilters": ["dlm:policy"], "TagFilters": [{"Key": "muster.cluster", "Values": [cluster]}]}
    tagged = account.client("resourcegroupstaggingapi").get_resources(**filters)["ResourceTagMappingList"]
    return [mapping["ResourceARN"].rpartition("/")[2] for mapping in tagged]


def backup_state(efs: Any, file_system: str) -> str:
    try:
        return str(efs.describe_backup_policy(FileSystemId=file_system)["BackupPolicy"]["Status"])
    except ClientError:
        return "none"


def existing_resources(spec: dict[str, Any], account: Moto) -> dict[str, Any]:
    """Return sections of the spec with images, policies, key, reservation and buckets of this account."""
    ec2, iam = account.client("ec2"), account.client("iam")
    allowed = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "*", "Resource": "*"}]}
    boundary, extra = (
        iam.create_policy(PolicyName=name, PolicyDocument=json.dumps(allowed))["Policy"]["Arn"]
        for name in ("boundary", EXTRA_POLICY)
    )
    linux = [image["ImageId"] for image in ec2.describe_images()["Images"] if image.get("Platform") != "windows"]
    aws = spec["aws"] | {
        "ami": linux[0],
        "plain_ami": linux[1],
        "permissions_boundary": boundary,
        "policies": {role: [extra] for role in spec["aws"]["policies"]},
        "kms_key": account.client("kms").create_key()["KeyMetadata"]["Arn"],
    }
    reserved = ec2.create_capacity_reservation(
        InstanceType="p5en.48xlarge", InstancePlatform="Linux/UNIX", AvailabilityZone="us-east-1a", InstanceCount=2
    )["CapacityReservation"]["CapacityReservationId"]
    spec["groups"]["h200"]["capacity"]["reservation"] = reserved
    s3 = account.client("s3")
    for bucket in ("my-data", "my-tools"):
        s3.create_bucket(Bucket=bucket)
    s3.put_object(Bucket="my-tools", Key="agent.sh", Body=b"abc")
    return {"aws": aws}
