"""What a cluster left on AWS is found in every service, priced, and removed; what is others' or to be kept is not."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from typing import Any

import pytest
from botocore.exceptions import ClientError
from moto.ec2.models import ec2_backends

from infra.resources.error import ResourceError
from infra.targets.aws import client as client_module
from infra.targets.aws import names
from infra.targets.aws.leftovers import search
from infra.targets.aws.leftovers.kind import AccountRegion, ClusterResource, ResourceKind
from infra.targets.target import Leftover
from slurm.power.launcher import Fault
from tests.infra.targets.aws.with_engine import moto_gaps
from tests.moto_server import ACCOUNT, REGION, Moto, aws, moto  # noqa: F401  # fixtures

LATER = float("inf")
OURS, THEIRS = "pair", "pair-2"
TRUST = json.dumps({"Version": "2012-10-17", "Statement": []})
POLICY = json.dumps(
    {"Version": "2012-10-17", "Statement": [{"Effect": "Deny", "Action": "ec2:RunInstances", "Resource": "*"}]}
)


@pytest.fixture(autouse=True)
def _whole_fsx() -> None:
    """moto does not say in which VPC a filesystem is."""
    moto_gaps.apply()


def tags(cluster: str, **more: str) -> list[dict[str, str]]:
    return [
        {"Key": key, "Value": value} for key, value in {"muster.cluster": cluster, "muster.stack": "s", **more}.items()
    ]


def spec(kind: str, cluster: str) -> dict[str, Any]:
    return {"TagSpecifications": [{"ResourceType": kind, "Tags": tags(cluster)}]}


def make(server: Moto, cluster: str, *, keep: bool = False) -> None:
    """One of everything."""
    kept = tags(cluster, **({"muster.keep": "true"} if keep else {}))
    subnet, group = make_network(server, cluster)
    kms, labels = server.client("kms"), [{"TagKey": t["Key"], "TagValue": t["Value"]} for t in tags(cluster)]
    key = kms.create_key(Tags=labels)["KeyMetadata"]["Arn"]
    kms.create_alias(AliasName=f"alias/muster-{cluster}", TargetKeyId=key)
    server.client("fsx").create_file_system(
        FileSystemType="LUSTRE",
        StorageCapacity=1200,
        SubnetIds=[subnet],
        KmsKeyId=key,
        Tags=kept,
        LustreConfiguration={"DeploymentType": "PERSISTENT_2", "PerUnitStorageThroughput": 125},
    )
    efs = server.client("efs").create_file_system(CreationToken=cluster, Tags=kept)
    server.client("efs").create_mount_target(FileSystemId=efs["FileSystemId"], SubnetId=subnet, SecurityGroups=[group])
    make_machines(server, cluster, subnet)
    make_names_and_rights(server, cluster)


def make_network(server: Moto, cluster: str) -> tuple[str, str]:
    ec2 = server.client("ec2")
    vpc = ec2.create_vpc(CidrBlock="10.0.0.0/16", **spec("vpc", cluster))["Vpc"]["VpcId"]
    subnet = ec2.create_subnet(VpcId=vpc, CidrBlock="10.0.1.0/24", **spec("subnet", cluster))["Subnet"]["SubnetId"]
    gateway = ec2.create_internet_gateway(**spec("internet-gateway", cluster))["InternetGateway"]["InternetGatewayId"]
    ec2.attach_internet_gateway(InternetGatewayId=gateway, VpcId=vpc)
    table = ec2.create_route_table(VpcId=vpc, **spec("route-table", cluster))["RouteTable"]["RouteTableId"]
    ec2.associate_route_table(RouteTableId=table, SubnetId=subnet)
    address = ec2.allocate_address(Domain="vpc", **spec("elastic-ip", cluster))["AllocationId"]
    ec2.create_nat_gateway(SubnetId=subnet, AllocationId=address, **spec("natgateway", cluster))
    group = ec2.create_security_group(
        GroupName=f"{cluster}-nodes", Description="nodes", VpcId=vpc, **spec("security-group", cluster)
    )["GroupId"]
    itself = [{"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": group}]}]
    ec2.authorize_security_group_ingress(GroupId=group, IpPermissions=itself)
    ec2.create_vpc_endpoint(
        VpcEndpointType="Interface",
        VpcId=vpc,
        ServiceName=f"com.amazonaws.{REGION}.ssm",
        SubnetIds=[subnet],
        SecurityGroupIds=[group],
        **spec("vpc-endpoint", cluster),
    )
    server.client("logs").create_log_group(logGroupName=f"/muster-{cluster}/flow-logs")
    role = server.client("iam").create_role(
        RoleName=f"muster-{cluster}-flow-logs", AssumeRolePolicyDocument=TRUST, Tags=tags(cluster)
    )
    ec2.create_flow_logs(
        ResourceIds=[vpc],
        ResourceType="VPC",
        TrafficType="ALL",
        LogGroupName=f"/muster-{cluster}/flow-logs",
        DeliverLogsPermissionArn=role["Role"]["Arn"],
        **spec("vpc-flow-log", cluster),
    )
    return subnet, group


def make_machines(server: Moto, cluster: str, subnet: str) -> None:
    ec2 = server.client("ec2")
    image = ec2.describe_images(Owners=["amazon"])["Images"][0]["ImageId"]
    ec2.run_instances(
        ImageId=image, InstanceType="g6.8xlarge", MinCount=2, MaxCount=2, SubnetId=subnet, **spec("instance", cluster)
    )
    ec2.request_spot_instances(
        InstanceCount=1,
        LaunchSpecification={"ImageId": image, "InstanceType": "g6.8xlarge", "SubnetId": subnet},
        **spec("spot-instances-request", cluster),
    )
    ec2.create_volume(AvailabilityZone=f"{REGION}a", Size=50, VolumeType="gp3", **spec("volume", cluster))
    ec2.create_network_interface(SubnetId=subnet, **spec("network-interface", cluster))
    ec2.create_launch_template(
        LaunchTemplateName=f"muster-{cluster}-gpu",
        LaunchTemplateData={"InstanceType": "g6.8xlarge"},
        **spec("launch-template", cluster),
    )
    ec2.create_placement_group(
        GroupName=f"muster-{cluster}-gpu", Strategy="cluster", **spec("placement-group", cluster)
    )


def make_names_and_rights(server: Moto, cluster: str) -> None:
    route53, iam, s3 = server.client("route53"), server.client("iam"), server.client("s3")
    zone = route53.create_hosted_zone(Name=names.domain(cluster), CallerReference=cluster)["HostedZone"]["Id"]
    id_ = zone.rpartition("/")[2]
    route53.change_tags_for_resource(ResourceType="hostedzone", ResourceId=id_, AddTags=tags(cluster))
    record = {
        "Name": f"gpu-1.{names.domain(cluster)}",
        "Type": "A",
        "TTL": 60,
        "ResourceRecords": [{"Value": "10.0.1.9"}],
    }
    batch = {"Changes": [{"Action": "UPSERT", "ResourceRecordSet": record}]}
    route53.change_resource_record_sets(HostedZoneId=id_, ChangeBatch=batch)
    server.client("ssm").put_parameter(Name=f"/muster/{cluster}/nodes/gpu-1", Value="{}", Type="String")
    role = f"muster-{cluster}-compute"
    iam.create_role(RoleName=role, AssumeRolePolicyDocument=TRUST, Tags=tags(cluster))
    iam.put_role_policy(RoleName=role, PolicyName="compute", PolicyDocument=POLICY)
    iam.create_instance_profile(InstanceProfileName=role, Tags=tags(cluster))
    iam.add_role_to_instance_profile(InstanceProfileName=role, RoleName=role)
    policy = iam.create_policy(PolicyName=f"muster-{cluster}-no-launch", PolicyDocument=POLICY, Tags=tags(cluster))
    iam.attach_role_policy(RoleName=role, PolicyArn=policy["Policy"]["Arn"])
    iam.create_policy_version(PolicyArn=policy["Policy"]["Arn"], PolicyDocument=POLICY, SetAsDefault=True)
    bucket = names.bucket(cluster, AccountRegion(REGION).account_id, REGION)
    s3.create_bucket(Bucket=bucket)
    s3.put_bucket_tagging(Bucket=bucket, Tagging={"TagSet": tags(cluster)})
    s3.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    for _version in range(2):
        s3.put_object(Bucket=bucket, Key="bundle", Body=b"x")
    budget = {
        "BudgetName": f"muster-{cluster}",
        "BudgetLimit": {"Amount": "1", "Unit": "USD"},
        "TimeUnit": "MONTHLY",
        "BudgetType": "COST",
    }
    server.client("budgets").create_budget(AccountId=AccountRegion(REGION).account_id, Budget=budget)


@pytest.fixture
def both(aws: Moto) -> Moto:  # noqa: F811
    make(aws, OURS)
    make(aws, THEIRS)
    return aws


def found(cluster: str) -> list[Leftover]:
    return search.find_leftovers(cluster, REGION).resources


def test_every_kind_is_found_and_removed_and_another_cluster_is_not_touched(both: Moto) -> None:
    mine, theirs = found(OURS), found(THEIRS)
    assert {one.kind for one in mine} == {kind.name for kind in search.KINDS}
    assert {one.name for one in mine} & {one.name for one in theirs} == set()
    for one in mine:
        search.remove_leftover(one, LATER, sleep=lambda _s: None)
    assert found(OURS) == []
    assert found(THEIRS) == theirs


def test_what_costs_money_says_how_much(aws: Moto) -> None:  # noqa: F811
    make(aws, OURS)
    usd = {one.kind: one.usd_per_hour for one in found(OURS) if one.usd_per_hour}
    assert set(usd) == {
        "instance",
        "volume",
        "FSx for Lustre filesystem",
        "private name zone",
        "VPC endpoint",
        "NAT gateway",
        "public address",
        "encryption key",
    }
    assert usd["FSx for Lustre filesystem"] == pytest.approx(1200 * 0.145 / 730)
    assert usd["instance"] > 1


def test_storage_to_be_kept_is_named_with_what_it_needs(aws: Moto) -> None:  # noqa: F811
    make(aws, OURS, keep=True)
    kept = {one.kind: one.keep_reason for one in found(OURS) if one.keep_reason}
    assert kept == {
        "FSx for Lustre filesystem": "keep: true",
        "EFS filesystem": "keep: true",
        "encryption key": "needed by it",
        "VPC": "needed by it",
        "subnet": "needed by it",
        "security group": "needed by it",
    }


def test_what_is_in_use_is_tried_again_until_it_is_not(aws: Moto) -> None:  # noqa: F811
    make_network(aws, OURS)
    (vpc,) = (one for one in found(OURS) if one.kind == "VPC")
    aws.fail("DeleteVpc", "DependencyViolation", times=2)
    waits: list[float] = []
    for one in found(OURS):
        search.remove_leftover(one, LATER, sleep=waits.append)
    assert waits == [1.0, 2.0]
    assert vpc not in found(OURS)
    search.remove_leftover(vpc, LATER)


@pytest.mark.parametrize("code", ["RequestLimitExceeded", "InternalError"])
def test_an_answer_that_may_come_later_is_asked_for_again(
    aws: Moto,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    code: str,
) -> None:
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    monkeypatch.setattr(client_module, "_RETRIES", {"mode": "standard", "total_max_attempts": 1})
    make_network(aws, OURS)
    address = next(one for one in found(OURS) if one.kind == "flow log")
    aws.fail("DeleteFlowLogs", code, times=2)
    waits: list[float] = []
    search.remove_leftover(address, LATER, sleep=waits.append)
    assert waits == [1.0, 2.0]


def test_waiting_for_what_is_in_use_has_an_end(aws: Moto) -> None:  # noqa: F811
    make_network(aws, OURS)
    (vpc,) = (one for one in found(OURS) if one.kind == "VPC")
    aws.fail("DeleteVpc", "DependencyViolation", times=99)
    with pytest.raises(ResourceError, match=f"AWS refused to remove VPC {vpc.name}"):
        search.remove_leftover(vpc, time.monotonic(), sleep=lambda _s: None)


@pytest.mark.parametrize(
    ("code", "message", "passes"),
    [
        ("InvalidParameterValue", "Network interface 'eni-1' is currently in use.", True),
        ("InvalidParameterValue", "Value (x) is not valid", False),
        ("VolumeInUse", "", True),
        ("UnauthorizedOperation", "", False),
        ("NoAnswer", "", True),
    ],
)
def test_which_refusals_pass(code: str, message: str, passes: bool) -> None:
    assert search._is_temporary(Fault("throttle" if code == "NoAnswer" else "broken", code, message)) is passes


def test_a_lost_connection_is_a_problem_that_names_what_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    one = Leftover("VPC", "vpc-1", region=REGION)
    with pytest.raises(ResourceError, match="AWS refused to remove VPC vpc-1: Could not connect"):
        search.remove_leftover(one, time.monotonic())


def test_a_spot_request_that_has_ended_is_not_left(aws: Moto) -> None:  # noqa: F811
    """The tagging service lists it for days: teardown of a cluster with spot nodes would never be done."""
    make_machines(aws, OURS, make_network(aws, OURS)[0])
    (request,) = (one for one in found(OURS) if one.kind == "spot request")
    (kept,) = ec2_backends[ACCOUNT][REGION].spot_instance_requests.values()
    assert request.name == kept.id
    kept.state = "closed"
    arn = f"arn:aws:ec2:{REGION}:{ACCOUNT}:spot-instances-request/{request.name}"
    assert search._read_arn_type(arn) in {arn for kind in search.KINDS for arn in kind.arn_types}
    assert "spot request" not in [one.kind for one in found(OURS)]


def test_what_is_refused_is_a_problem_that_names_it(aws: Moto) -> None:  # noqa: F811
    make_network(aws, OURS)
    (vpc,) = (one for one in found(OURS) if one.kind == "VPC")
    aws.fail("DeleteVpc", "UnauthorizedOperation")
    with pytest.raises(ResourceError, match=f"VPC {vpc.name}"):
        search.remove_leftover(vpc, LATER)


def test_what_muster_never_makes_but_carries_its_tag_is_told_and_left_to_people(aws: Moto) -> None:  # noqa: F811
    aws.client("sqs").create_queue(QueueName="q", tags={"muster.cluster": OURS, "muster.stack": "s"})
    (one,) = found(OURS)
    assert (one.kind, one.name, one.stack) == ("tagged resource", f"arn:aws:sqs:{REGION}:123456789012:q", "s")
    with pytest.raises(ResourceError, match="sqs"):
        search.remove_leftover(one, LATER)


def test_a_service_that_may_not_be_listed_is_named_and_hides_nothing_else(aws: Moto) -> None:  # noqa: F811
    make(aws, OURS)
    everything = found(OURS)
    aws.fail("DescribeVolumes", "UnauthorizedOperation")
    aws.fail("DescribeSubnets", "UnauthorizedOperation")
    results = search.find_leftovers(OURS, REGION)
    assert results.unseen == ("ec2 (volume, subnet) because UnauthorizedOperation",)
    assert results.resources == [one for one in everything if one.kind not in ("volume", "subnet")]


def test_nothing_is_removed_that_storage_may_stand_on_which_was_not_looked_at(aws: Moto) -> None:  # noqa: F811
    make(aws, OURS, keep=True)
    for action in ("DescribeFileSystems", "GET /2015-02-01/file-systems"):
        aws.fail(action, "AccessDeniedException", times=9)
    results = search.find_leftovers(OURS, REGION)
    assert any("filesystem" in one for one in results.unseen)
    stays = {one.kind for one in results.resources if one.keep_reason}
    assert stays == {"encryption key", "VPC", "subnet", "security group"}


def test_an_account_that_tells_nothing_is_no_receipt(monkeypatch: pytest.MonkeyPatch, aws: Moto) -> None:  # noqa: F811
    monkeypatch.setattr(search, "KINDS", tuple(map(refusing, search.KINDS)))
    aws.fail("GetResources", "ExpiredToken", times=9)
    with pytest.raises(ResourceError, match=r"cannot be listed \(ec2 \(instance, .* because ExpiredToken\)"):
        found(OURS)


def refusing(kind: ResourceKind) -> ResourceKind:
    def find(*_: object) -> list[ClusterResource]:
        raise ClientError({"Error": {"Code": "ExpiredToken", "Message": "injected"}}, "Describe")

    return replace(kind, find=find)


def test_an_account_out_of_reach_is_no_receipt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    with pytest.raises(ResourceError, match="cannot be listed"):
        found(OURS)
