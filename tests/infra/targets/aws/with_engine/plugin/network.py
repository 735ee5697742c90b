"""EC2: the network and who may talk to whom in it."""

from __future__ import annotations

from tests.infra.targets.aws.with_engine.plugin.calls import delete
from tests.infra.targets.aws.with_engine.plugin.ec2 import one, retag, simple, tagging, there
from tests.infra.targets.aws.with_engine.plugin.kind import Aws, Kind, Made, Props, Tags, asked, removed, upper


def _set_vpc(aws: Aws, id_: str, props: Props) -> None:
    for name in ("enableDnsSupport", "enableDnsHostnames"):
        aws.ec2.modify_vpc_attribute(VpcId=id_, **{upper(name): {"Value": props.get(name, name == "enableDnsSupport")}})


def _set_subnet(aws: Aws, id_: str, props: Props) -> None:
    wanted = {"Value": bool(props.get("mapPublicIpOnLaunch"))}
    aws.ec2.modify_subnet_attribute(SubnetId=id_, MapPublicIpOnLaunch=wanted)


def _attach_gateway(aws: Aws, id_: str, props: Props) -> None:
    if not (one(aws, "InternetGateways", id_) or {}).get("Attachments"):
        aws.ec2.attach_internet_gateway(InternetGatewayId=id_, VpcId=props["vpcId"])


def _detach_gateway(aws: Aws, id_: str, props: Props) -> None:
    aws.ec2.detach_internet_gateway(InternetGatewayId=id_, VpcId=props["vpcId"])


def _create_gateway(aws: Aws, props: Props, tags: Tags) -> Made:
    made = aws.ec2.create_internet_gateway(TagSpecifications=tagging("internet-gateway", tags))["InternetGateway"]
    _attach_gateway(aws, made["InternetGatewayId"], props)
    return made["InternetGatewayId"], {}


def _delete_gateway(aws: Aws, id_: str, props: Props) -> None:
    removed(lambda: _detach_gateway(aws, id_, props), "NotAttached")
    removed(lambda: aws.ec2.delete_internet_gateway(InternetGatewayId=id_))


def _default_group(aws: Aws, props: Props, tags: Tags) -> Made:
    """Taken over rather than made: all of its rules go."""
    wanted = [{"Name": "vpc-id", "Values": [props["vpcId"]]}, {"Name": "group-name", "Values": ["default"]}]
    (group,) = aws.ec2.describe_security_groups(Filters=wanted)["SecurityGroups"]
    id_ = group["GroupId"]
    if group["IpPermissions"]:
        aws.ec2.revoke_security_group_ingress(GroupId=id_, IpPermissions=group["IpPermissions"])
    if group["IpPermissionsEgress"]:
        aws.ec2.revoke_security_group_egress(GroupId=id_, IpPermissions=group["IpPermissionsEgress"])
    retag(aws, id_, props, tags)
    return id_, {}


def _create_group(aws: Aws, props: Props, tags: Tags) -> Made:
    """Without the rule that AWS makes, as the provider has it."""
    id_ = aws.ec2.create_security_group(
        GroupName=props["name"],
        Description=props["description"],
        VpcId=props["vpcId"],
        TagSpecifications=tagging("security-group", tags),
    )["GroupId"]
    made = aws.ec2.describe_security_groups(GroupIds=[id_])["SecurityGroups"][0]
    if made["IpPermissionsEgress"]:
        aws.ec2.revoke_security_group_egress(GroupId=id_, IpPermissions=made["IpPermissionsEgress"])
    return id_, {}


def _group(aws: Aws, id_: str, _props: Props) -> Props | None:
    row = one(aws, "SecurityGroups", id_, GroupIds=[id_])
    return None if row is None else {"description": row["Description"], "name": row["GroupName"]}


def _rule(direction: str) -> Kind:
    word = direction.lower()

    def permission(props: Props) -> Props:
        made: Props = {"IpProtocol": props["ipProtocol"], **asked(props, "fromPort toPort")}
        about = {"Description": props["description"]} if props.get("description") else {}
        if props.get("cidrIpv4"):
            return made | {"IpRanges": [{"CidrIp": props["cidrIpv4"], **about}]}
        return made | {"UserIdGroupPairs": [{"GroupId": props["referencedSecurityGroupId"], **about}]}

    def create(aws: Aws, props: Props, tags: Tags) -> Made:
        answer = getattr(aws.ec2, f"authorize_security_group_{word}")(
            GroupId=props["securityGroupId"],
            IpPermissions=[permission(props)],
            TagSpecifications=tagging("security-group-rule", tags),
        )
        id_ = answer["SecurityGroupRules"][0]["SecurityGroupRuleId"]
        return id_, {"securityGroupRuleId": id_}

    def read(aws: Aws, id_: str, _props: Props) -> Props | None:
        return None if one(aws, "SecurityGroupRules", id_) is None else {}

    def delete(aws: Aws, id_: str, props: Props) -> None:
        revoke = getattr(aws.ec2, f"revoke_security_group_{word}")
        removed(lambda: revoke(GroupId=props["securityGroupId"], SecurityGroupRuleIds=[id_]))

    return Kind(
        f"aws:vpc/securityGroup{direction}Rule:SecurityGroup{direction}Rule",
        "securityGroupId! ipProtocol! fromPort toPort cidrIpv4 referencedSecurityGroupId description",
        create,
        delete,
        read,
        update=retag,
        computed="securityGroupRuleId",
        tagged=True,
    )


def _create_route(aws: Aws, props: Props, _tags: Tags) -> Made:
    aws.ec2.create_route(**asked(props, "routeTableId destinationCidrBlock gatewayId natGatewayId"))
    return f"r-{props['routeTableId']}-{props['destinationCidrBlock']}", {}


def _route(aws: Aws, _id: str, props: Props) -> Props | None:
    table = one(aws, "RouteTables", props["routeTableId"])
    routes = [one.get("DestinationCidrBlock") for one in (table or {}).get("Routes", [])]
    return {} if props["destinationCidrBlock"] in routes else None


def _delete_route(aws: Aws, _id: str, props: Props) -> None:
    removed(lambda: aws.ec2.delete_route(**asked(props, "routeTableId destinationCidrBlock")))


def _associate(aws: Aws, props: Props, _tags: Tags) -> Made:
    return aws.ec2.associate_route_table(**asked(props, "routeTableId subnetId"))["AssociationId"], {}


def _association(aws: Aws, id_: str, props: Props) -> Props | None:
    table = one(aws, "RouteTables", props["routeTableId"])
    ids = [one["RouteTableAssociationId"] for one in (table or {}).get("Associations", [])]
    return {} if id_ in ids else None


def _disassociate(aws: Aws, id_: str, _props: Props) -> None:
    removed(lambda: aws.ec2.disassociate_route_table(AssociationId=id_))


def _create_address(aws: Aws, props: Props, tags: Tags) -> Made:
    made = aws.ec2.allocate_address(Domain=props["domain"], TagSpecifications=tagging("elastic-ip", tags))
    return made["AllocationId"], {"publicIp": made["PublicIp"]}


def _address(aws: Aws, id_: str, _props: Props) -> Props | None:
    row = one(aws, "Addresses", id_, AllocationIds=[id_])
    return None if row is None else {"publicIp": row["PublicIp"]}


def _create_endpoint(aws: Aws, props: Props, tags: Tags) -> Made:
    names = "vpcId serviceName vpcEndpointType routeTableIds subnetIds securityGroupIds privateDnsEnabled"
    made = aws.ec2.create_vpc_endpoint(**asked(props, names), TagSpecifications=tagging("vpc-endpoint", tags))
    return made["VpcEndpoint"]["VpcEndpointId"], {}


def _create_flow_log(aws: Aws, props: Props, tags: Tags) -> Made:
    made = aws.ec2.create_flow_logs(
        ResourceIds=[props["vpcId"]],
        ResourceType="VPC",
        DeliverLogsPermissionArn=props["iamRoleArn"],
        TagSpecifications=tagging("vpc-flow-log", tags),
        **asked(props, "trafficType logDestinationType logDestination maxAggregationInterval"),
    )
    return made["FlowLogIds"][0], {}


def _create_interface(aws: Aws, props: Props, tags: Tags) -> Made:
    made = aws.ec2.create_network_interface(
        Groups=props["securityGroups"],
        TagSpecifications=tagging("network-interface", tags),
        **asked(props, "subnetId description"),
    )["NetworkInterface"]
    return made["NetworkInterfaceId"], {"privateIp": made["PrivateIpAddress"]}


def _interface(aws: Aws, id_: str, _props: Props) -> Props | None:
    row = one(aws, "NetworkInterfaces", id_)
    return None if row is None else {"privateIp": row["PrivateIpAddress"]}


def _nothing(_aws: Aws, _id: str, _props: Props) -> None:
    pass


KINDS = (
    simple(
        "aws:ec2/vpc:Vpc",
        "Vpcs",
        "cidrBlock!",
        word="vpc",
        change="enableDnsHostnames enableDnsSupport",
        after=_set_vpc,
        readable="cidrBlock",
    ),
    simple(
        "aws:ec2/subnet:Subnet",
        "Subnets",
        "vpcId! cidrBlock! availabilityZone",
        word="subnet",
        change="mapPublicIpOnLaunch",
        after=_set_subnet,
        readable="cidrBlock availabilityZone",
    ),
    simple("aws:ec2/routeTable:RouteTable", "RouteTables", "vpcId!", word="route-table"),
    simple("aws:ec2/natGateway:NatGateway", "NatGateways", "subnetId! allocationId", word="natgateway"),
    Kind(
        "aws:ec2/internetGateway:InternetGateway",
        "vpcId",
        _create_gateway,
        _delete_gateway,
        there("InternetGateways"),
        update=retag,
        tagged=True,
    ),
    Kind(
        "aws:ec2/defaultSecurityGroup:DefaultSecurityGroup",
        "vpcId",
        _default_group,
        _nothing,
        lambda aws, id_, props: None if _group(aws, id_, props) is None else {},
        update=retag,
        tagged=True,
    ),
    Kind(
        "aws:ec2/securityGroup:SecurityGroup",
        "name vpcId description",
        _create_group,
        delete("ec2", "delete_security_group", "GroupId"),
        _group,
        update=retag,
        tagged=True,
    ),
    _rule("Ingress"),
    _rule("Egress"),
    Kind(
        "aws:ec2/route:Route",
        "routeTableId! destinationCidrBlock gatewayId natGatewayId",
        _create_route,
        _delete_route,
        _route,
    ),
    Kind(
        "aws:ec2/routeTableAssociation:RouteTableAssociation",
        "subnetId routeTableId!",
        _associate,
        _disassociate,
        _association,
    ),
    Kind(
        "aws:ec2/eip:Eip",
        "domain",
        _create_address,
        delete("ec2", "release_address", "AllocationId"),
        _address,
        update=retag,
        computed="publicIp",
        tagged=True,
    ),
    Kind(
        "aws:ec2/vpcEndpoint:VpcEndpoint",
        "vpcId! serviceName vpcEndpointType routeTableIds subnetIds securityGroupIds privateDnsEnabled",
        _create_endpoint,
        delete("ec2", "delete_vpc_endpoints", "VpcEndpointIds"),
        there("VpcEndpoints"),
        update=retag,
        tagged=True,
    ),
    Kind(
        "aws:ec2/flowLog:FlowLog",
        "vpcId trafficType logDestinationType logDestination iamRoleArn maxAggregationInterval",
        _create_flow_log,
        delete("ec2", "delete_flow_logs", "FlowLogIds"),
        there("FlowLogs"),
        update=retag,
        tagged=True,
    ),
    Kind(
        "aws:ec2/networkInterface:NetworkInterface",
        "subnetId! description securityGroups",
        _create_interface,
        delete("ec2", "delete_network_interface", "NetworkInterfaceId"),
        _interface,
        update=retag,
        computed="privateIp",
        tagged=True,
    ),
)
