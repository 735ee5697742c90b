"""Search and removal of leftovers on AWS: every kind is found, priced and removed; kept storage stays."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from botocore import endpoint
from botocore.exceptions import ClientError
from moto.ec2.models import ec2_backends

from infra.resources.error import ResourceError
from infra.targets.aws import names
from infra.targets.aws.client import create_client
from infra.targets.aws.leftovers import kind, search
from infra.targets.aws.leftovers.kind import AccountRegion, ClusterResource, ResourceKind
from infra.targets.aws.leftovers.registry import KINDS, USERS
from infra.targets.aws.rehearse import moto_gaps
from infra.targets.target import Leftover
from slurm.power.launcher import Fault
from tests.moto_server import ACCOUNT, REGION, Moto, aws, moto  # noqa: F401  # fixtures

LATER = float("inf")
OURS, THEIRS = "pair", "pair-2"
TRUST = json.dumps({"Version": "2012-10-17", "Statement": []})
POLICY = json.dumps(
    {"Version": "2012-10-17", "Statement": [{"Effect": "Deny", "Action": "ec2:RunInstances", "Resource": "*"}]}
)


@pytest.fixture(autouse=True)
def _fill_moto_gaps() -> None:
    """Fill moto's gaps: it does not report the VPC of a filesystem."""
    moto_gaps.apply()


def tags(cluster: str, **more: str) -> list[dict[str, str]]:
    return [
        {"Key": key, "Value": value} for key, value in {"muster.cluster": cluster, "muster.stack": "s", **more}.items()
    ]


def spec(kind: str, cluster: str) -> dict[str, Any]:
    return {"TagSpecifications": [{"ResourceType": kind, "Tags": tags(cluster)}]}


def create_all(server: Moto, cluster: str, *, keep: bool = False) -> None:
    """Create one resource of every kind."""
    storage_tags = tags(cluster, **({"muster.keep": "true"} if keep else {}))
    subnet, group = create_network(server, cluster)
    kms, labels = server.client("kms"), [{"TagKey": t["Key"], "TagValue": t["Value"]} for t in tags(cluster)]
    key = kms.create_key(Tags=labels)["KeyMetadata"]["Arn"]
    kms.create_alias(AliasName=f"alias/muster-{cluster}", TargetKeyId=key)
    server.client("fsx").create_file_system(
        FileSystemType="LUSTRE",
        StorageCapacity=1200,
        SubnetIds=[subnet],
        KmsKeyId=key,
        Tags=storage_tags,
        LustreConfiguration={"DeploymentType": "PERSISTENT_2", "PerUnitStorageThroughput": 125},
    )
    efs = server.client("efs").create_file_system(CreationToken=cluster, Tags=storage_tags)
    server.client("efs").create_mount_target(FileSystemId=efs["FileSystemId"], SubnetId=subnet, SecurityGroups=[group])
    create_machines(server, cluster, subnet)
    create_names_roles_and_storage(server, cluster)
    create_lifecycle_policy(server, cluster)


def create_lifecycle_policy(server: Moto, cluster: str) -> None:
    server.client("dlm").create_lifecycle_policy(
        ExecutionRoleArn="arn:aws:iam::123456789012:role/snapshots",
        Description="queue and accounting",
        State="ENABLED",
        PolicyDetails={"ResourceTypes": ["VOLUME"]},
        Tags={tag["Key"]: tag["Value"] for tag in tags(cluster)},
    )


def create_network(server: Moto, cluster: str) -> tuple[str, str]:
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
    from_itself = [{"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": group}]}]
    ec2.authorize_security_group_ingress(GroupId=group, IpPermissions=from_itself)
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


def create_machines(server: Moto, cluster: str, subnet: str) -> None:
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
    instance = ec2.describe_instances()["Reservations"][-1]["Instances"][0]["InstanceId"]
    tagged = [{"ResourceType": kind, "Tags": tags(cluster)} for kind in ("image", "snapshot")]
    ec2.create_image(InstanceId=instance, Name=cluster, TagSpecifications=tagged)
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


def create_names_roles_and_storage(server: Moto, cluster: str) -> None:
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
def both_clusters(aws: Moto) -> Moto:  # noqa: F811
    create_all(aws, OURS)
    create_all(aws, THEIRS)
    return aws


def list_leftovers(cluster: str) -> list[Leftover]:
    return search.find_leftovers(cluster, REGION).resources


def test_every_kind_is_removed_and_another_cluster_is_not_touched(both_clusters: Moto) -> None:
    ours, theirs = list_leftovers(OURS), list_leftovers(THEIRS)
    assert {leftover.kind for leftover in ours} == {kind.name for kind in search.KINDS}
    assert {leftover.name for leftover in ours} & {leftover.name for leftover in theirs} == set()
    for leftover in ours:
        search.remove_leftover(leftover, LATER, AccountRegion(REGION), sleep=lambda _s: None)
    assert list_leftovers(OURS) == []
    assert list_leftovers(THEIRS) == theirs


def test_leftovers_that_cost_money_have_a_price(aws: Moto) -> None:  # noqa: F811
    create_all(aws, OURS)
    usd = {leftover.kind: leftover.usd_per_hour for leftover in list_leftovers(OURS) if leftover.usd_per_hour}
    assert set(usd) == {
        "instance",
        "volume",
        "snapshot",
        "FSx for Lustre filesystem",
        "private name zone",
        "VPC endpoint",
        "NAT gateway",
        "public address",
        "encryption key",
    }
    assert usd["FSx for Lustre filesystem"] == pytest.approx(1200 * 0.145 / 730)
    assert usd["instance"] > 1


def test_kept_storage_is_listed_with_what_it_needs(aws: Moto) -> None:  # noqa: F811
    create_all(aws, OURS, keep=True)
    reasons = {leftover.kind: leftover.keep_reason for leftover in list_leftovers(OURS) if leftover.keep_reason}
    assert reasons == {
        "FSx for Lustre filesystem": "keep: true",
        "EFS filesystem": "keep: true",
        "encryption key": "needed by it",
        "VPC": "needed by it",
        "subnet": "needed by it",
        "security group": "needed by it",
    }


def test_snapshots_of_queue_and_accounting_are_kept_with_their_key(aws: Moto) -> None:  # noqa: F811
    ec2, kms = aws.client("ec2"), aws.client("kms")
    labels = [{"TagKey": tag["Key"], "TagValue": tag["Value"]} for tag in tags(OURS)]
    key, other = (kms.create_key(Tags=labels)["KeyMetadata"] for _ in range(2))
    volume = ec2.create_volume(AvailabilityZone=f"{REGION}a", Size=50, Encrypted=True, KmsKeyId=key["Arn"])["VolumeId"]
    labels_of_snapshot = [{"ResourceType": "snapshot", "Tags": tags(OURS, **{"muster.keep": "true"})}]
    snapshot = ec2.create_snapshot(VolumeId=volume, TagSpecifications=labels_of_snapshot)["SnapshotId"]
    # Unlike AWS, moto forgets the key of the volume.
    ec2_backends[ACCOUNT][REGION].snapshots[snapshot].kms_key_id = key["Arn"]
    leftovers = {leftover.name: leftover for leftover in list_leftovers(OURS)}
    reasons = {name: leftover.keep_reason for name, leftover in leftovers.items()}
    assert reasons == {snapshot: "keep: true", key["KeyId"]: "needed by it", other["KeyId"]: ""}
    assert leftovers[snapshot].usd_per_hour == pytest.approx(50 * 0.05 / 730)


def test_a_zone_whose_tagging_failed_is_removed_and_one_of_somebody_else_is_not(aws: Moto) -> None:  # noqa: F811
    route53 = aws.client("route53")
    for number, comment in enumerate((names.zone_comment(OURS), "of somebody else")):
        config = {"Comment": comment, "PrivateZone": False}
        route53.create_hosted_zone(Name=names.domain(OURS), CallerReference=str(number), HostedZoneConfig=config)
    (zone,) = list_leftovers(OURS)
    search.remove_leftover(zone, LATER, AccountRegion(REGION), sleep=lambda _s: None)
    (other,) = route53.list_hosted_zones()["HostedZones"]
    assert other["Config"]["Comment"] == "of somebody else"


@pytest.fixture
def vpc(aws: Moto) -> Leftover:  # noqa: F811
    created = aws.client("ec2").create_vpc(CidrBlock="10.0.0.0/16", **spec("vpc", OURS))
    return Leftover("VPC", created["Vpc"]["VpcId"], region=REGION)


def test_removal_is_retried_while_a_resource_is_in_use(aws: Moto, vpc: Leftover) -> None:  # noqa: F811
    aws.fail("DeleteVpc", "DependencyViolation", times=2)
    waits: list[float] = []
    search.remove_leftover(vpc, LATER, AccountRegion(REGION), sleep=waits.append)
    assert waits == [1.0, 2.0]
    assert vpc.name not in [other["VpcId"] for other in aws.client("ec2").describe_vpcs()["Vpcs"]]
    # A resource that no longer exists counts as removed.
    search.remove_leftover(vpc, LATER, AccountRegion(REGION))


@pytest.mark.parametrize("code", ["RequestLimitExceeded", "InternalError"])
def test_transient_errors_are_retried(
    aws: Moto,  # noqa: F811
    vpc: Leftover,
    monkeypatch: pytest.MonkeyPatch,
    code: str,
) -> None:
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    monkeypatch.setattr(kind, "create_client", partial(create_client, attempts=1))
    aws.fail("DeleteVpc", code, times=2)
    waits: list[float] = []
    search.remove_leftover(vpc, LATER, AccountRegion(REGION), sleep=waits.append)
    assert waits == [1.0, 2.0]


def test_removal_of_a_resource_in_use_times_out(aws: Moto, vpc: Leftover) -> None:  # noqa: F811
    aws.fail("DeleteVpc", "DependencyViolation", times=99)
    with pytest.raises(ResourceError, match=f"AWS refused to remove VPC {vpc.name}"):
        search.remove_leftover(vpc, time.monotonic(), AccountRegion(REGION), sleep=lambda _s: None)


def test_what_uses_a_resource_is_removed_before_it() -> None:
    for used, users in USERS.items():
        assert {user for user in users if KINDS.index(user) >= KINDS.index(used)} == set(), used.name


def test_a_leftover_names_the_kinds_that_use_it_and_the_search_those_it_could_not_list(aws: Moto) -> None:  # noqa: F811
    create_all(aws, OURS)
    aws.fail("DescribeNatGateways", "UnauthorizedOperation")
    leftovers = search.find_leftovers(OURS, REGION)
    used_by = {leftover.kind: leftover.used_by for leftover in leftovers.resources}
    assert used_by["volume"] == {"instance"}
    assert used_by["public address"] == {"NAT gateway"}
    assert leftovers.unseen_kinds == {"NAT gateway"}


@pytest.mark.parametrize(
    ("code", "message", "temporary"),
    [
        ("InvalidParameterValue", "Network interface 'eni-1' is currently in use.", True),
        ("InvalidParameterValue", "Value (x) is not valid", False),
        ("VolumeInUse", "", True),
        ("UnauthorizedOperation", "", False),
        ("NoAnswer", "", True),
    ],
)
def test_temporary_errors_are_recognized(code: str, message: str, temporary: bool) -> None:
    assert search._is_temporary(Fault("throttle" if code == "NoAnswer" else "broken", code, message)) is temporary


@pytest.fixture
def unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Point clients to a port that nothing listens on; they do not pause before they retry."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    monkeypatch.setattr(endpoint, "time", SimpleNamespace(sleep=lambda _seconds: None))


def test_a_lost_connection_error_names_the_leftover(unreachable: None) -> None:
    leftover = Leftover("VPC", "vpc-1", region=REGION)
    with pytest.raises(ResourceError, match="AWS refused to remove VPC vpc-1: Could not connect"):
        search.remove_leftover(leftover, time.monotonic(), AccountRegion(REGION))


def test_an_ended_spot_request_is_not_a_leftover(aws: Moto) -> None:  # noqa: F811
    """The tagging service lists it for days: otherwise teardown of a cluster with spot nodes would never finish."""
    create_machines(aws, OURS, create_network(aws, OURS)[0])
    (request,) = (leftover for leftover in list_leftovers(OURS) if leftover.kind == "spot request")
    (moto_request,) = ec2_backends[ACCOUNT][REGION].spot_instance_requests.values()
    assert request.name == moto_request.id
    moto_request.state = "closed"
    arn = f"arn:aws:ec2:{REGION}:{ACCOUNT}:spot-instances-request/{request.name}"
    assert search._read_arn_type(arn) in {arn for kind in search.KINDS for arn in kind.arn_types}
    assert "spot request" not in [leftover.kind for leftover in list_leftovers(OURS)]


def test_a_denied_removal_error_names_the_resource_and_the_code(aws: Moto, vpc: Leftover) -> None:  # noqa: F811
    aws.fail("DeleteVpc", "UnauthorizedOperation")
    with pytest.raises(ResourceError, match=f"VPC {vpc.name}: UnauthorizedOperation: injected"):
        search.remove_leftover(vpc, LATER, AccountRegion(REGION))


def test_unknown_tagged_resources_are_listed_but_not_removed(aws: Moto) -> None:  # noqa: F811
    aws.client("sqs").create_queue(QueueName="q", tags={"muster.cluster": OURS, "muster.stack": "s"})
    (leftover,) = list_leftovers(OURS)
    assert (leftover.kind, leftover.name, leftover.stack) == (
        "tagged resource",
        f"arn:aws:sqs:{REGION}:123456789012:q",
        "s",
    )
    with pytest.raises(ResourceError, match="sqs"):
        search.remove_leftover(leftover, LATER, AccountRegion(REGION))


def test_a_denied_listing_is_named_and_hides_nothing_else(aws: Moto) -> None:  # noqa: F811
    create_all(aws, OURS)
    everything = list_leftovers(OURS)
    aws.fail("DescribeVolumes", "UnauthorizedOperation")
    aws.fail("DescribeSubnets", "UnauthorizedOperation")
    results = search.find_leftovers(OURS, REGION)
    assert results.unseen == ("ec2 (volume, subnet) because UnauthorizedOperation",)
    assert results.resources == [leftover for leftover in everything if leftover.kind not in ("volume", "subnet")]


def test_resources_that_unlisted_storage_may_need_are_kept(aws: Moto) -> None:  # noqa: F811
    create_all(aws, OURS, keep=True)
    for action in ("DescribeFileSystems", "GET /2015-02-01/file-systems"):
        aws.fail(action, "AccessDeniedException", times=9)
    results = search.find_leftovers(OURS, REGION)
    assert any("filesystem" in reason for reason in results.unseen)
    kept_kinds = {leftover.kind for leftover in results.resources if leftover.keep_reason}
    assert kept_kinds == {"encryption key", "VPC", "subnet", "security group"}


def test_if_nothing_can_be_listed_there_is_no_receipt(monkeypatch: pytest.MonkeyPatch, aws: Moto) -> None:  # noqa: F811
    monkeypatch.setattr(search, "KINDS", tuple(map(denying, search.KINDS)))
    aws.fail("GetResources", "ExpiredToken", times=9)
    with pytest.raises(ResourceError, match=r"cannot be listed \(ec2 \(instance, .* because ExpiredToken\)"):
        list_leftovers(OURS)


def denying(kind: ResourceKind) -> ResourceKind:
    def find(*_: object) -> list[ClusterResource]:
        raise ClientError({"Error": {"Code": "ExpiredToken", "Message": "injected"}}, "Describe")

    return replace(kind, find=find)


def test_if_aws_is_unreachable_there_is_no_receipt(unreachable: None) -> None:
    with pytest.raises(ResourceError, match="cannot be listed"):
        list_leftovers(OURS)
