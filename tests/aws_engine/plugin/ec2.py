"""EC2: network, security groups, machines, templates."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable
from typing import Any

from tests.aws_engine.plugin.kind import Aws, Kind, Made, Props, Tags, api, asked, found, listed, removed, upper

_GONE = ("terminated", "shutting-down", "deleted", "deleting")
_METADATA = "httpEndpoint httpPutResponseHopLimit httpTokens instanceMetadataTags"


def _one(aws: Aws, what: str, id_: str, **ids: Any) -> Props | None:
    """One of what EC2 lists under this word."""
    operation = "describe" + "".join(f"_{c.lower()}" if c.isupper() else c for c in what)
    answer = found(lambda: getattr(aws.ec2, operation)(**(ids or {f"{_id(what)}s": [id_]})), "Unknown")
    rows = (answer or {}).get(what) or []
    return next((row for row in rows if str(row.get("State", "")) not in _GONE), None)


def _id(what: str) -> str:
    return f"{what[:-1]}Id"


def _seen(row: Props, names: str) -> Props:
    """Properties as EC2 tells them, for those that have the same name there."""
    return {name: row[upper(name)] for name in names.split() if upper(name) in row}


def _spec(kind: str, tags: Tags) -> list[Props]:
    return [{"ResourceType": kind, "Tags": listed(tags)}]


def _retag(aws: Aws, id_: str, _news: Props, tags: Tags) -> Props:
    aws.ec2.create_tags(Resources=[id_], Tags=listed(tags))
    return {}


def simple(  # noqa: PLR0913
    token: str,
    what: str,
    replace: str,
    *,
    word: str,
    change: str = "",
    computed: str = "",
    after: Callable[[Aws, str, Props], None] | None = None,
    before_delete: Callable[[Aws, str, Props], None] | None = None,
    readable: str = "",
) -> Kind:
    """What is made by create_x, described by describe_xs and removed by delete_x."""
    call = "".join(f"_{c.lower()}" if c.isupper() else c for c in what[:-1])
    id_key, sent = _id(what), (replace + " " + change).replace("!", "")

    def create(aws: Aws, props: Props, tags: Tags) -> Made:
        wanted = asked(props, " ".join(one for one in sent.split() if one not in _LATER))
        answer = getattr(aws.ec2, f"create{call}")(**wanted, TagSpecifications=_spec(word, tags))
        row = answer.get(what[:-1], answer)
        if after:
            after(aws, row[id_key], props)
        return row[id_key], read(aws, row[id_key], props) or {}

    def read(aws: Aws, id_: str, _props: Props) -> Props | None:
        row = _one(aws, what, id_)
        return None if row is None else _seen(row, f"{readable} {computed}")

    def delete(aws: Aws, id_: str, props: Props) -> None:
        if before_delete:
            removed(lambda: before_delete(aws, id_, props))
        removed(lambda: getattr(aws.ec2, f"delete{call}")(**{id_key: id_}))

    def update(aws: Aws, id_: str, news: Props, tags: Tags) -> Props:
        if after:
            after(aws, id_, news)
        return _retag(aws, id_, news, tags)

    return Kind(token, replace, create, delete, read, change=change, update=update, computed=computed, tagged=True)


# Set by calls of their own once the thing exists.
_LATER = ("enableDnsHostnames", "enableDnsSupport", "mapPublicIpOnLaunch")


def _set_vpc(aws: Aws, id_: str, props: Props) -> None:
    for name in ("enableDnsSupport", "enableDnsHostnames"):
        aws.ec2.modify_vpc_attribute(VpcId=id_, **{upper(name): {"Value": props.get(name, name == "enableDnsSupport")}})


def _set_subnet(aws: Aws, id_: str, props: Props) -> None:
    wanted = {"Value": bool(props.get("mapPublicIpOnLaunch"))}
    aws.ec2.modify_subnet_attribute(SubnetId=id_, MapPublicIpOnLaunch=wanted)


def _attach_gateway(aws: Aws, id_: str, props: Props) -> None:
    if not (_one(aws, "InternetGateways", id_) or {}).get("Attachments"):
        aws.ec2.attach_internet_gateway(InternetGatewayId=id_, VpcId=props["vpcId"])


def _detach_gateway(aws: Aws, id_: str, props: Props) -> None:
    aws.ec2.detach_internet_gateway(InternetGatewayId=id_, VpcId=props["vpcId"])


def _create_gateway(aws: Aws, props: Props, tags: Tags) -> Made:
    made = aws.ec2.create_internet_gateway(TagSpecifications=_spec("internet-gateway", tags))["InternetGateway"]
    _attach_gateway(aws, made["InternetGatewayId"], props)
    return made["InternetGatewayId"], {}


def _delete_gateway(aws: Aws, id_: str, props: Props) -> None:
    removed(lambda: _detach_gateway(aws, id_, props), "NotAttached")
    removed(lambda: aws.ec2.delete_internet_gateway(InternetGatewayId=id_))


def _there(what: str) -> Callable[[Aws, str, Props], Props | None]:
    return lambda aws, id_, _props: None if _one(aws, what, id_) is None else {}


def _default_group(aws: Aws, props: Props, tags: Tags) -> Made:
    """Taken over rather than made: all of its rules go."""
    wanted = [{"Name": "vpc-id", "Values": [props["vpcId"]]}, {"Name": "group-name", "Values": ["default"]}]
    (group,) = aws.ec2.describe_security_groups(Filters=wanted)["SecurityGroups"]
    id_ = group["GroupId"]
    if group["IpPermissions"]:
        aws.ec2.revoke_security_group_ingress(GroupId=id_, IpPermissions=group["IpPermissions"])
    if group["IpPermissionsEgress"]:
        aws.ec2.revoke_security_group_egress(GroupId=id_, IpPermissions=group["IpPermissionsEgress"])
    _retag(aws, id_, props, tags)
    return id_, {}


def _create_group(aws: Aws, props: Props, tags: Tags) -> Made:
    """Without the rule that AWS makes, as the provider has it."""
    id_ = aws.ec2.create_security_group(
        GroupName=props["name"],
        Description=props["description"],
        VpcId=props["vpcId"],
        TagSpecifications=_spec("security-group", tags),
    )["GroupId"]
    made = aws.ec2.describe_security_groups(GroupIds=[id_])["SecurityGroups"][0]
    if made["IpPermissionsEgress"]:
        aws.ec2.revoke_security_group_egress(GroupId=id_, IpPermissions=made["IpPermissionsEgress"])
    return id_, {}


def _group(aws: Aws, id_: str, _props: Props) -> Props | None:
    row = _one(aws, "SecurityGroups", id_, GroupIds=[id_])
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
            TagSpecifications=_spec("security-group-rule", tags),
        )
        id_ = answer["SecurityGroupRules"][0]["SecurityGroupRuleId"]
        return id_, {"securityGroupRuleId": id_}

    def read(aws: Aws, id_: str, _props: Props) -> Props | None:
        return None if _one(aws, "SecurityGroupRules", id_) is None else {}

    def delete(aws: Aws, id_: str, props: Props) -> None:
        revoke = getattr(aws.ec2, f"revoke_security_group_{word}")
        removed(lambda: revoke(GroupId=props["securityGroupId"], SecurityGroupRuleIds=[id_]))

    return Kind(
        f"aws:vpc/securityGroup{direction}Rule:SecurityGroup{direction}Rule",
        "securityGroupId! ipProtocol! fromPort toPort cidrIpv4 referencedSecurityGroupId description",
        create,
        delete,
        read,
        update=_retag,
        computed="securityGroupRuleId",
        tagged=True,
    )


def _create_route(aws: Aws, props: Props, _tags: Tags) -> Made:
    aws.ec2.create_route(**asked(props, "routeTableId destinationCidrBlock gatewayId natGatewayId"))
    return f"r-{props['routeTableId']}-{props['destinationCidrBlock']}", {}


def _route(aws: Aws, _id: str, props: Props) -> Props | None:
    table = _one(aws, "RouteTables", props["routeTableId"])
    routes = [one.get("DestinationCidrBlock") for one in (table or {}).get("Routes", [])]
    return {} if props["destinationCidrBlock"] in routes else None


def _delete_route(aws: Aws, _id: str, props: Props) -> None:
    removed(lambda: aws.ec2.delete_route(**asked(props, "routeTableId destinationCidrBlock")))


def _associate(aws: Aws, props: Props, _tags: Tags) -> Made:
    return aws.ec2.associate_route_table(**asked(props, "routeTableId subnetId"))["AssociationId"], {}


def _association(aws: Aws, id_: str, props: Props) -> Props | None:
    table = _one(aws, "RouteTables", props["routeTableId"])
    ids = [one["RouteTableAssociationId"] for one in (table or {}).get("Associations", [])]
    return {} if id_ in ids else None


def _disassociate(aws: Aws, id_: str, _props: Props) -> None:
    removed(lambda: aws.ec2.disassociate_route_table(AssociationId=id_))


def _create_address(aws: Aws, props: Props, tags: Tags) -> Made:
    made = aws.ec2.allocate_address(Domain=props["domain"], TagSpecifications=_spec("elastic-ip", tags))
    return made["AllocationId"], {"publicIp": made["PublicIp"]}


def _address(aws: Aws, id_: str, _props: Props) -> Props | None:
    row = _one(aws, "Addresses", id_, AllocationIds=[id_])
    return None if row is None else {"publicIp": row["PublicIp"]}


def _create_endpoint(aws: Aws, props: Props, tags: Tags) -> Made:
    names = "vpcId serviceName vpcEndpointType routeTableIds subnetIds securityGroupIds privateDnsEnabled"
    made = aws.ec2.create_vpc_endpoint(**asked(props, names), TagSpecifications=_spec("vpc-endpoint", tags))
    return made["VpcEndpoint"]["VpcEndpointId"], {}


def _create_flow_log(aws: Aws, props: Props, tags: Tags) -> Made:
    made = aws.ec2.create_flow_logs(
        ResourceIds=[props["vpcId"]],
        ResourceType="VPC",
        DeliverLogsPermissionArn=props["iamRoleArn"],
        TagSpecifications=_spec("vpc-flow-log", tags),
        **asked(props, "trafficType logDestinationType logDestination maxAggregationInterval"),
    )
    return made["FlowLogIds"][0], {}


def _create_interface(aws: Aws, props: Props, tags: Tags) -> Made:
    made = aws.ec2.create_network_interface(
        Groups=props["securityGroups"],
        TagSpecifications=_spec("network-interface", tags),
        **asked(props, "subnetId description"),
    )["NetworkInterface"]
    return made["NetworkInterfaceId"], {"privateIp": made["PrivateIpAddress"]}


def _interface(aws: Aws, id_: str, _props: Props) -> Props | None:
    row = _one(aws, "NetworkInterfaces", id_)
    return None if row is None else {"privateIp": row["PrivateIpAddress"]}


def _delete_interface(aws: Aws, id_: str, _props: Props) -> None:
    removed(lambda: aws.ec2.delete_network_interface(NetworkInterfaceId=id_))


_MACHINE = "instanceType metadataOptions ebsOptimized maintenanceOptions instanceInitiatedShutdownBehavior"


def _create_instance(aws: Aws, props: Props, tags: Tags) -> Made:
    interface = {"DeviceIndex": 0, "NetworkInterfaceId": props["primaryNetworkInterface"]["networkInterfaceId"]}
    made = aws.ec2.run_instances(
        ImageId=props["ami"],
        MinCount=1,
        MaxCount=1,
        NetworkInterfaces=[interface],
        IamInstanceProfile={"Name": props["iamInstanceProfile"]},
        # The library encodes it once more.
        UserData=b64decode(props["userDataBase64"]).decode(),
        BlockDeviceMappings=[{"DeviceName": "/dev/sda1", "Ebs": api(props["rootBlockDevice"])}],
        Monitoring={"Enabled": bool(props.get("monitoring"))},
        TagSpecifications=[*_spec("instance", tags), *_spec("volume", props.get("volumeTags") or {})],
        **asked(props, _MACHINE),
    )["Instances"][0]
    return made["InstanceId"], {}


def _instance(aws: Aws, id_: str, _props: Props) -> Props | None:
    answer = found(lambda: aws.ec2.describe_instances(InstanceIds=[id_]))
    rows = [one for reservation in (answer or {}).get("Reservations", []) for one in reservation["Instances"]]
    row = next((one for one in rows if one["State"]["Name"] not in _GONE), None)
    return None if row is None else {"instanceType": row["InstanceType"]}


def _delete_instance(aws: Aws, id_: str, _props: Props) -> None:
    removed(lambda: aws.ec2.terminate_instances(InstanceIds=[id_]))
    aws.ec2.get_waiter("instance_terminated").wait(InstanceIds=[id_])


def _create_volume(aws: Aws, props: Props, tags: Tags) -> Made:
    made = aws.ec2.create_volume(
        VolumeType=props["type"],
        TagSpecifications=_spec("volume", tags),
        **asked(props, "availabilityZone size encrypted kmsKeyId"),
    )
    return made["VolumeId"], {}


def _volume(aws: Aws, id_: str, _props: Props) -> Props | None:
    row = _one(aws, "Volumes", id_)
    return None if row is None else {"size": row["Size"], "type": row["VolumeType"]}


def _update_volume(aws: Aws, id_: str, news: Props, tags: Tags) -> Props:
    aws.ec2.modify_volume(VolumeId=id_, Size=news["size"], VolumeType=news["type"])
    return _retag(aws, id_, news, tags)


def _attach(aws: Aws, props: Props, _tags: Tags) -> Made:
    aws.ec2.attach_volume(Device=props["deviceName"], **asked(props, "volumeId instanceId"))
    return f"vai-{props['volumeId']}-{props['instanceId']}", {}


def _attachment(aws: Aws, _id: str, props: Props) -> Props | None:
    row = _one(aws, "Volumes", props["volumeId"])
    attached = [one["InstanceId"] for one in (row or {}).get("Attachments", [])]
    return {} if props["instanceId"] in attached else None


def _detach(aws: Aws, _id: str, props: Props) -> None:
    if props.get("stopInstanceBeforeDetaching"):
        aws.ec2.stop_instances(InstanceIds=[props["instanceId"]])
        aws.ec2.get_waiter("instance_stopped").wait(InstanceIds=[props["instanceId"]])
    removed(lambda: aws.ec2.detach_volume(**asked(props, "volumeId instanceId")), "IncorrectState")


_TEMPLATE = (
    "imageId instanceType iamInstanceProfile userData metadataOptions blockDeviceMappings networkInterfaces "
    "instanceInitiatedShutdownBehavior ebsOptimized monitoring tagSpecifications instanceMarketOptions "
    "capacityReservationSpecification"
)


def _template_data(props: Props) -> Props:
    """The API says Groups, and has tags as lists."""
    data = asked(props, _TEMPLATE)
    data["NetworkInterfaces"] = [
        {("Groups" if key == "SecurityGroups" else key): value for key, value in one.items()}
        for one in data["NetworkInterfaces"]
    ]
    data["TagSpecifications"] = [
        {"ResourceType": one["resourceType"], "Tags": listed(one["tags"])} for one in props["tagSpecifications"]
    ]
    return data


def _create_template(aws: Aws, props: Props, tags: Tags) -> Made:
    made = aws.ec2.create_launch_template(
        LaunchTemplateName=props["name"],
        VersionDescription=props["description"],
        LaunchTemplateData=_template_data(props),
        TagSpecifications=_spec("launch-template", tags),
    )["LaunchTemplate"]
    return made["LaunchTemplateId"], {"latestVersion": 1, "defaultVersion": 1}


def _template(aws: Aws, id_: str, _props: Props) -> Props | None:
    row = _one(aws, "LaunchTemplates", id_)
    return None if row is None else {"latestVersion": row["LatestVersionNumber"]}


def _update_template(aws: Aws, id_: str, news: Props, tags: Tags) -> Props:
    made = aws.ec2.create_launch_template_version(
        LaunchTemplateId=id_, VersionDescription=news["description"], LaunchTemplateData=_template_data(news)
    )["LaunchTemplateVersion"]["VersionNumber"]
    if news.get("updateDefaultVersion"):
        aws.ec2.modify_launch_template(LaunchTemplateId=id_, DefaultVersion=str(made))
    _retag(aws, id_, news, tags)
    return {"latestVersion": made, "defaultVersion": made}


def _create_placement(aws: Aws, props: Props, tags: Tags) -> Made:
    wanted = {"GroupName": props["name"], "Strategy": props["strategy"]}
    aws.ec2.create_placement_group(**wanted, TagSpecifications=_spec("placement-group", tags))
    return props["name"], {}


def _placement(aws: Aws, id_: str, _props: Props) -> Props | None:
    return None if _one(aws, "PlacementGroups", id_, GroupNames=[id_]) is None else {}


def _call(operation: str, parameter: str) -> Callable[[Aws, str, Props], None]:
    """A call that takes one id, or a list of them."""

    def delete(aws: Aws, id_: str, _props: Props) -> None:
        value: Any = [id_] if parameter.endswith("s") else id_
        removed(lambda: getattr(aws.ec2, operation)(**{parameter: value}), "Unknown")

    return delete


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
        _there("InternetGateways"),
        update=_retag,
        tagged=True,
    ),
    Kind(
        "aws:ec2/defaultSecurityGroup:DefaultSecurityGroup",
        "vpcId",
        _default_group,
        _nothing,
        lambda aws, id_, props: None if _group(aws, id_, props) is None else {},
        update=_retag,
        tagged=True,
    ),
    Kind(
        "aws:ec2/securityGroup:SecurityGroup",
        "name vpcId description",
        _create_group,
        _call("delete_security_group", "GroupId"),
        _group,
        update=_retag,
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
        _call("release_address", "AllocationId"),
        _address,
        update=_retag,
        computed="publicIp",
        tagged=True,
    ),
    Kind(
        "aws:ec2/vpcEndpoint:VpcEndpoint",
        "vpcId! serviceName vpcEndpointType routeTableIds subnetIds securityGroupIds privateDnsEnabled",
        _create_endpoint,
        _call("delete_vpc_endpoints", "VpcEndpointIds"),
        _there("VpcEndpoints"),
        update=_retag,
        tagged=True,
    ),
    Kind(
        "aws:ec2/flowLog:FlowLog",
        "vpcId trafficType logDestinationType logDestination iamRoleArn maxAggregationInterval",
        _create_flow_log,
        _call("delete_flow_logs", "FlowLogIds"),
        _there("FlowLogs"),
        update=_retag,
        tagged=True,
    ),
    Kind(
        "aws:ec2/networkInterface:NetworkInterface",
        "subnetId! description securityGroups",
        _create_interface,
        _delete_interface,
        _interface,
        update=_retag,
        computed="privateIp",
        tagged=True,
    ),
    Kind(
        "aws:ec2/instance:Instance",
        "ami instanceType primaryNetworkInterface userDataBase64 rootBlockDevice ebsOptimized iamInstanceProfile "
        "metadataOptions monitoring maintenanceOptions instanceInitiatedShutdownBehavior",
        _create_instance,
        _delete_instance,
        _instance,
        change="volumeTags",
        update=_retag,
        tagged=True,
        nested={
            "metadataOptions": _METADATA,
            "primaryNetworkInterface": "networkInterfaceId",
            "rootBlockDevice": "volumeType volumeSize encrypted kmsKeyId deleteOnTermination",
            "maintenanceOptions": "autoRecovery",
        },
    ),
    Kind(
        "aws:ebs/volume:Volume",
        "availabilityZone! encrypted kmsKeyId",
        _create_volume,
        _call("delete_volume", "VolumeId"),
        _volume,
        change="size type",
        update=_update_volume,
        tagged=True,
    ),
    Kind(
        "aws:ec2/volumeAttachment:VolumeAttachment",
        "deviceName! volumeId! instanceId!",
        _attach,
        _detach,
        _attachment,
        change="stopInstanceBeforeDetaching",
    ),
    Kind(
        "aws:ec2/launchTemplate:LaunchTemplate",
        "name",
        _create_template,
        _call("delete_launch_template", "LaunchTemplateId"),
        _template,
        change=f"description updateDefaultVersion {_TEMPLATE}",
        update=_update_template,
        computed="latestVersion defaultVersion",
        tagged=True,
        nested={
            "metadataOptions": _METADATA,
            "blockDeviceMappings": "deviceName ebs deleteOnTermination encrypted iops kmsKeyId throughput volumeSize "
            "volumeType",
            "networkInterfaces": "networkCardIndex deviceIndex interfaceType securityGroups deleteOnTermination "
            "associatePublicIpAddress",
            "tagSpecifications": "resourceType tags",
            "instanceMarketOptions": "marketType spotOptions spotInstanceType instanceInterruptionBehavior",
            "capacityReservationSpecification": "capacityReservationTarget capacityReservationId "
            "capacityReservationResourceGroupArn",
            "iamInstanceProfile": "arn",
            "monitoring": "enabled",
        },
    ),
    Kind(
        "aws:ec2/placementGroup:PlacementGroup",
        "name strategy",
        _create_placement,
        _call("delete_placement_group", "GroupName"),
        _placement,
        # moto keeps tags by id, and knows none of these.
        update=lambda *_: {},
        tagged=True,
    ),
)
