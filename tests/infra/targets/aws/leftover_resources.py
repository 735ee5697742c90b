"""One resource of every kind that a cluster on AWS may leave behind."""

from __future__ import annotations

import json
from typing import Any

from infra.targets.aws import names
from infra.targets.aws.leftovers import search
from infra.targets.aws.leftovers.kind import AccountRegion
from infra.targets.target import Leftover
from tests.moto_server import REGION, Moto

OURS, THEIRS = "pair", "pair-2"
TRUST = json.dumps({"Version": "2012-10-17", "Statement": []})
POLICY = json.dumps(
    {"Version": "2012-10-17", "Statement": [{"Effect": "Deny", "Action": "ec2:RunInstances", "Resource": "*"}]}
)


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


def list_leftovers(cluster: str) -> list[Leftover]:
    return search.find_leftovers(cluster, REGION).resources
