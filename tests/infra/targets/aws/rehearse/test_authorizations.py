"""The permissions of real calls, judged by the policies that the program creates."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import pytest

from infra.targets.aws.launcher.api import AwsApi
from infra.targets.aws.launcher.launch import launch
from infra.targets.aws.launcher.launcher import AwsLauncher
from infra.targets.aws.node import parameters
from infra.targets.aws.plan import iam
from infra.targets.aws.plan.policy import Scope
from infra.targets.aws.rehearse.authorizations import Template, list_authorizations
from infra.targets.aws.rehearse.policies import Authorization, Statement, list_denied
from tests.moto_server import ACCOUNT, REGION, Moto
from tests.slurm.power.cluster import make_fleet

CLUSTER = "demo"
KEY = f"arn:aws:kms:{REGION}:{ACCOUNT}:key/k"
COMPUTE_ROLE = f"arn:aws:iam::{ACCOUNT}:role/muster-{CLUSTER}-compute"
OWN_TAGS = {"muster.cluster": CLUSTER, "muster.role": "compute"}


@dataclass
class FakeAccount:
    """An account in which every resource has the same tags and every object the same key."""

    id: str = ACCOUNT
    region: str = REGION
    resource_tags: Mapping[str, str] = field(default_factory=lambda: OWN_TAGS)
    role_arn: str = COMPUTE_ROLE

    def tags(self, _resource_id: str) -> Mapping[str, str]:
        return self.resource_tags

    def template(self, _id: str, _version: str) -> Template:
        return Template("ami-1", "g6.xlarge", self.role_arn, (KEY,), {"instance": OWN_TAGS, "volume": OWN_TAGS})

    def parameter_key(self, _name: str) -> str:
        return KEY

    def bucket_key(self, _bucket: str) -> str:
        return KEY


def scope(**changes: object) -> Scope:
    fixed = Scope("aws", REGION, ACCOUNT, CLUSTER, "arn:aws:s3:::bucket", KEY, zone_id="Z1", images=("ami-1",))
    return replace(fixed, **changes)


def statements(role: Callable[[Scope], tuple[iam.Statement, ...]], **changes: object) -> list[Statement]:
    return [statement.as_json() for statement in role(scope(**changes))]


def denied(
    role: list[Statement], service: str, action: str, account: FakeAccount | None = None, **body: object
) -> list[Authorization]:
    params = {"body": json.dumps(body)}
    return list_denied(role, list_authorizations(account or FakeAccount(), service, action, params))


@pytest.mark.parametrize("role", ["controller", "login", "compute"])
def test_every_node_may_read_its_bundle_and_secrets_and_report(role: str) -> None:
    own = statements({"controller": iam.controller, "login": iam.login, "compute": iam.compute}[role])
    assert denied(own, "s3", "GET /bucket/bundle/abc.tar") == []
    host_key = [parameters.host_key(CLUSTER, role)] if role != "compute" else []
    for name in (parameters.slurm_key(CLUSTER), *host_key):
        assert denied(own, "ssm", "GetParameter", Name=name, WithDecryption=True) == []
    node = "gpu-1" if role == "compute" else role
    assert denied(own, "ssm", "PutParameter", Name=parameters.node(CLUSTER, node), Value="{}") == []


def test_only_the_controller_reads_the_password_and_the_fleet() -> None:
    password = {"Name": parameters.db_password(CLUSTER), "WithDecryption": True}
    assert denied(statements(iam.controller), "ssm", "GetParameter", **password) == []
    assert denied(statements(iam.controller), "s3", "GET /bucket/fleet.json") == []
    arn = f"arn:aws:ssm:{REGION}:{ACCOUNT}:parameter/muster/{CLUSTER}/db-password"
    assert denied(statements(iam.compute), "ssm", "GetParameter", **password) == [
        Authorization("ssm:GetParameter", arn)
    ]
    assert [a.action for a in denied(statements(iam.compute), "s3", "GET /bucket/fleet.json")] == ["s3:GetObject"]


def test_a_node_cannot_use_another_key_or_write_bundles() -> None:
    @dataclass
    class OtherKey(FakeAccount):
        def bucket_key(self, _bucket: str) -> str:
            return f"{KEY}-of-others"

    assert [a.action for a in denied(statements(iam.compute), "s3", "GET /bucket/bundle/a.tar", OtherKey())] == [
        "kms:Decrypt"
    ]
    assert "s3:PutObject" in [a.action for a in denied(statements(iam.controller), "s3", "PUT /bucket/bundle/a.tar")]
    assert denied(statements(iam.controller), "s3", "PUT /bucket/packages/a.tar") == []


def test_a_call_without_an_entry_is_denied_unless_a_policy_allows_it_on_everything() -> None:
    assert denied(statements(iam.controller), "ec2", "DescribeInstances") == []
    assert [a.action for a in denied(statements(iam.compute), "ec2", "DescribeInstances")] == ["ec2:DescribeInstances"]


def test_deleting_an_object_needs_its_own_permission() -> None:
    assert denied(statements(iam.controller), "s3", "DELETE /bucket/packages/a.tar") == [
        Authorization("s3:DeleteObject", "arn:aws:s3:::bucket/packages/a.tar")
    ]
    with pytest.raises(ValueError, match="POST /bucket/packages/a is no request for an object that is known"):
        denied(statements(iam.controller), "s3", "POST /bucket/packages/a")


def test_the_controller_may_make_the_calls_of_its_launcher(aws: Moto) -> None:
    fleet = make_fleet(aws)
    option = fleet.groups[0].options[0]
    role = statements(
        iam.controller,
        subnet_ids=(option.subnet_id,),
        instance_types=(option.instance_type,),
        security_groups=fleet.groups[0].security_groups,
        spot=True,
    )
    account = FakeAccount(resource_tags={"muster.cluster": fleet.cluster, "muster.role": "compute"})
    result = launch(AwsApi(REGION), fleet, fleet.groups[0].options, [("gpu-1", "gpu-2")], "token")
    AwsLauncher(fleet, AwsApi(REGION)).terminate(result.machines.values())
    calls = [call for call in aws.calls if call.action in ("RunInstances", "TerminateInstances")]
    assert [call.action for call in calls] == ["RunInstances", "TerminateInstances"]
    for call in calls:
        needed = list(list_authorizations(account, call.service, call.action, call.params))
        assert len(needed) >= 2
        assert list_denied(role, needed) == []
    run, end = calls
    outside = FakeAccount(resource_tags={})
    template = [
        a for a in list_authorizations(outside, run.service, run.action, run.params) if "launch-template" in a.resource
    ]
    assert list_denied(role, template) == template
    assert list_denied(role, list_authorizations(outside, end.service, end.action, end.params)) != []
    other_role = replace(account, role_arn=COMPUTE_ROLE.replace("compute", "controller"))
    lacking = list_denied(role, list_authorizations(other_role, run.service, run.action, run.params))
    assert [a.action for a in lacking] == ["iam:PassRole"]


def test_names_are_written_in_the_clusters_own_zone_only() -> None:
    action = "POST /2013-04-01/hostedzone/{}/rrset/"
    assert denied(statements(iam.controller), "route53", action.format("Z1")) == []
    assert denied(statements(iam.controller), "route53", action.format("Z2")) != []


def test_who_the_caller_is_needs_no_permission() -> None:
    assert list(list_authorizations(FakeAccount(), "sts", "GetCallerIdentity", {})) == []


def test_a_role_is_assumed_by_its_arn() -> None:
    role = "arn:aws:iam::123456789012:role/jobs"
    needed = list(list_authorizations(FakeAccount(), "sts", "AssumeRole", {"RoleArn": role}))
    assert needed == [Authorization("sts:AssumeRole", role)]
