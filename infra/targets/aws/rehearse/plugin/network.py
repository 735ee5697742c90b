"""EC2 networks: VPC, subnets, routes, gateways, security groups, endpoints and interfaces."""

from __future__ import annotations

from infra.targets.aws.rehearse.plugin.calls import delete
from infra.targets.aws.rehearse.plugin.ec2 import find_row, read_existence, retag, simple_kind, tagging
from infra.targets.aws.rehearse.plugin.kind import (
    Aws,
    Created,
    Kind,
    Props,
    Tags,
    call_parameters,
    delete_if_exists,
    upper,
)


def _set_vpc(aws: Aws, id_: str, props: Props) -> None:
    for name in ("enableDnsSupport", "enableDnsHostnames"):
        aws.ec2.modify_vpc_attribute(VpcId=id_, **{upper(name): {"Value": props.get(name, name == "enableDnsSupport")}})


def _set_subnet(aws: Aws, id_: str, props: Props) -> None:
    setting = {"Value": bool(props.get("mapPublicIpOnLaunch"))}
    aws.ec2.modify_subnet_attribute(SubnetId=id_, MapPublicIpOnLaunch=setting)


def _attach_gateway(aws: Aws, id_: str, props: Props, _tags: Tags) -> Props:
    if not (find_row(aws, "InternetGateways", id_) or {}).get("Attachments"):
        aws.ec2.attach_internet_gateway(InternetGatewayId=id_, VpcId=props["vpcId"])
    return {}


def _detach_gateway(aws: Aws, id_: str, props: Props) -> None:
    aws.ec2.detach_internet_gateway(InternetGatewayId=id_, VpcId=props["vpcId"])


def _create_gateway(aws: Aws, _props: Props, tags: Tags) -> Created:
    gateway = aws.ec2.create_internet_gateway(TagSpecifications=tagging("internet-gateway", tags))["InternetGateway"]
    return gateway["InternetGatewayId"], {}


def _delete_gateway(aws: Aws, id_: str, props: Props) -> None:
    delete_if_exists(lambda: _detach_gateway(aws, id_, props), "NotAttached")
    delete_if_exists(lambda: aws.ec2.delete_internet_gateway(InternetGatewayId=id_))


def _default_group(aws: Aws, props: Props, tags: Tags) -> Created:
    """Adopt the default group of the VPC and remove all of its rules."""
    filters = [{"Name": "vpc-id", "Values": [props["vpcId"]]}, {"Name": "group-name", "Values": ["default"]}]
    (group,) = aws.ec2.describe_security_groups(Filters=filters)["SecurityGroups"]
    id_ = group["GroupId"]
    if group["IpPermissions"]:
        aws.ec2.revoke_security_group_ingress(GroupId=id_, IpPermissions=group["IpPermissions"])
    if group["IpPermissionsEgress"]:
        aws.ec2.revoke_security_group_egress(GroupId=id_, IpPermissions=group["IpPermissionsEgress"])
    retag(aws, id_, props, tags)
    return id_, {}


def _create_group(aws: Aws, props: Props, tags: Tags) -> Created:
    id_ = aws.ec2.create_security_group(
        GroupName=props["name"],
        Description=props["description"],
        VpcId=props["vpcId"],
        TagSpecifications=tagging("security-group", tags),
    )["GroupId"]
    return id_, {}


def _remove_default_rule(aws: Aws, id_: str, _props: Props, _tags: Tags) -> Props:
    """Remove AWS's default egress rule of a new group, as the real provider does."""
    group = aws.ec2.describe_security_groups(GroupIds=[id_])["SecurityGroups"][0]
    if group["IpPermissionsEgress"]:
        aws.ec2.revoke_security_group_egress(GroupId=id_, IpPermissions=group["IpPermissionsEgress"])
    return {}


def _group(aws: Aws, id_: str, _props: Props) -> Props | None:
    row = find_row(aws, "SecurityGroups", id_, GroupIds=[id_])
    return None if row is None else {"description": row["Description"], "name": row["GroupName"]}


def _rule(direction: str) -> Kind:
    word = direction.lower()

    def permission(props: Props) -> Props:
        rule: Props = {"IpProtocol": props["ipProtocol"], **call_parameters(props, "fromPort toPort")}
        description = {"Description": props["description"]} if props.get("description") else {}
        if props.get("cidrIpv4"):
            return rule | {"IpRanges": [{"CidrIp": props["cidrIpv4"], **description}]}
        return rule | {"UserIdGroupPairs": [{"GroupId": props["referencedSecurityGroupId"], **description}]}

    def create(aws: Aws, props: Props, tags: Tags) -> Created:
        answer = getattr(aws.ec2, f"authorize_security_group_{word}")(
            GroupId=props["securityGroupId"],
            IpPermissions=[permission(props)],
            TagSpecifications=tagging("security-group-rule", tags),
        )
        id_ = answer["SecurityGroupRules"][0]["SecurityGroupRuleId"]
        return id_, {"securityGroupRuleId": id_}

    def read(aws: Aws, id_: str, _props: Props) -> Props | None:
        return None if find_row(aws, "SecurityGroupRules", id_) is None else {}

    def delete(aws: Aws, id_: str, props: Props) -> None:
        revoke = getattr(aws.ec2, f"revoke_security_group_{word}")
        delete_if_exists(lambda: revoke(GroupId=props["securityGroupId"], SecurityGroupRuleIds=[id_]))

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


def _create_route(aws: Aws, props: Props, _tags: Tags) -> Created:
    aws.ec2.create_route(**call_parameters(props, "routeTableId destinationCidrBlock gatewayId natGatewayId"))
    return f"r-{props['routeTableId']}-{props['destinationCidrBlock']}", {}


def _route(aws: Aws, _id: str, props: Props) -> Props | None:
    table = find_row(aws, "RouteTables", props["routeTableId"])
    routes = [route.get("DestinationCidrBlock") for route in (table or {}).get("Routes", [])]
    return {} if props["destinationCidrBlock"] in routes else None


def _delete_route(aws: Aws, _id: str, props: Props) -> None:
    delete_if_exists(lambda: aws.ec2.delete_route(**call_parameters(props, "routeTableId destinationCidrBlock")))


def _associate(aws: Aws, props: Props, _tags: Tags) -> Created:
    return aws.ec2.associate_route_table(**call_parameters(props, "routeTableId subnetId"))["AssociationId"], {}


def _association(aws: Aws, id_: str, props: Props) -> Props | None:
    table = find_row(aws, "RouteTables", props["routeTableId"])
    ids = [association["RouteTableAssociationId"] for association in (table or {}).get("Associations", [])]
    return {} if id_ in ids else None


def _disassociate(aws: Aws, id_: str, _props: Props) -> None:
    delete_if_exists(lambda: aws.ec2.disassociate_route_table(AssociationId=id_))


def _create_address(aws: Aws, props: Props, tags: Tags) -> Created:
    address = aws.ec2.allocate_address(Domain=props["domain"], TagSpecifications=tagging("elastic-ip", tags))
    return address["AllocationId"], {"publicIp": address["PublicIp"]}


def _address(aws: Aws, id_: str, _props: Props) -> Props | None:
    row = find_row(aws, "Addresses", id_, AllocationIds=[id_])
    return None if row is None else {"publicIp": row["PublicIp"]}


def _create_endpoint(aws: Aws, props: Props, tags: Tags) -> Created:
    names = "vpcId serviceName vpcEndpointType routeTableIds subnetIds securityGroupIds privateDnsEnabled"
    response = aws.ec2.create_vpc_endpoint(
        **call_parameters(props, names), TagSpecifications=tagging("vpc-endpoint", tags)
    )
    return response["VpcEndpoint"]["VpcEndpointId"], {}


def _create_flow_log(aws: Aws, props: Props, tags: Tags) -> Created:
    response = aws.ec2.create_flow_logs(
        ResourceIds=[props["vpcId"]],
        ResourceType="VPC",
        DeliverLogsPermissionArn=props["iamRoleArn"],
        TagSpecifications=tagging("vpc-flow-log", tags),
        **call_parameters(props, "trafficType logDestinationType logDestination maxAggregationInterval"),
    )
    return response["FlowLogIds"][0], {}


def _create_interface(aws: Aws, props: Props, tags: Tags) -> Created:
    interface = aws.ec2.create_network_interface(
        Groups=props["securityGroups"],
        TagSpecifications=tagging("network-interface", tags),
        **call_parameters(props, "subnetId description"),
    )["NetworkInterface"]
    return interface["NetworkInterfaceId"], {"privateIp": interface["PrivateIpAddress"]}


def _interface(aws: Aws, id_: str, _props: Props) -> Props | None:
    row = find_row(aws, "NetworkInterfaces", id_)
    return None if row is None else {"privateIp": row["PrivateIpAddress"]}


def _do_nothing(_aws: Aws, _id: str, _props: Props) -> None:
    pass


KINDS = (
    simple_kind(
        "aws:ec2/vpc:Vpc",
        "Vpcs",
        "cidrBlock!",
        word="vpc",
        change="enableDnsHostnames enableDnsSupport",
        after=_set_vpc,
        readable="cidrBlock",
    ),
    simple_kind(
        "aws:ec2/subnet:Subnet",
        "Subnets",
        "vpcId! cidrBlock! availabilityZone",
        word="subnet",
        change="mapPublicIpOnLaunch",
        after=_set_subnet,
        readable="cidrBlock availabilityZone",
    ),
    simple_kind("aws:ec2/routeTable:RouteTable", "RouteTables", "vpcId!", word="route-table"),
    simple_kind(
        "aws:ec2/natGateway:NatGateway",
        "NatGateways",
        "subnetId! allocationId",
        word="natgateway",
        waits=True,
    ),
    Kind(
        "aws:ec2/internetGateway:InternetGateway",
        "vpcId",
        _create_gateway,
        _delete_gateway,
        read_existence("InternetGateways"),
        update=retag,
        complete=_attach_gateway,
        tagged=True,
    ),
    Kind(
        "aws:ec2/defaultSecurityGroup:DefaultSecurityGroup",
        "vpcId",
        _default_group,
        _do_nothing,
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
        complete=_remove_default_rule,
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
        read_existence("VpcEndpoints"),
        update=retag,
        tagged=True,
    ),
    Kind(
        "aws:ec2/flowLog:FlowLog",
        "vpcId trafficType logDestinationType logDestination iamRoleArn maxAggregationInterval",
        _create_flow_log,
        delete("ec2", "delete_flow_logs", "FlowLogIds"),
        read_existence("FlowLogs"),
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
