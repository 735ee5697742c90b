"""EC2: machines, their disks, and the templates that nodes are launched from."""

from __future__ import annotations

from base64 import b64decode

from tests.infra.targets.aws.with_engine.plugin.calls import delete
from tests.infra.targets.aws.with_engine.plugin.ec2 import GONE, one, retag, tagging
from tests.infra.targets.aws.with_engine.plugin.kind import (
    Aws,
    Kind,
    Made,
    Props,
    Tags,
    api,
    asked,
    found,
    listed,
    removed,
)

_METADATA = "httpEndpoint httpPutResponseHopLimit httpTokens instanceMetadataTags"
_MACHINE = "instanceType metadataOptions ebsOptimized maintenanceOptions instanceInitiatedShutdownBehavior"


def _create_instance(aws: Aws, props: Props, tags: Tags) -> Made:
    root = {key: value for key, value in props["rootBlockDevice"].items() if key != "tags"}
    # The provider's own tags reach the disk, those of the machine do not.
    disk = {key: value for key, value in tags.items() if key not in (props.get("tags") or {})}
    disk |= props["rootBlockDevice"].get("tags") or {}
    interface = {"DeviceIndex": 0, "NetworkInterfaceId": props["primaryNetworkInterface"]["networkInterfaceId"]}
    made = aws.ec2.run_instances(
        ImageId=props["ami"],
        MinCount=1,
        MaxCount=1,
        NetworkInterfaces=[interface],
        IamInstanceProfile={"Name": props["iamInstanceProfile"]},
        # The library encodes it once more.
        UserData=b64decode(props["userDataBase64"]).decode(),
        BlockDeviceMappings=[{"DeviceName": "/dev/sda1", "Ebs": api(root)}],
        Monitoring={"Enabled": bool(props.get("monitoring"))},
        TagSpecifications=[*tagging("instance", tags), *tagging("volume", disk)],
        **asked(props, _MACHINE),
    )["Instances"][0]
    return made["InstanceId"], {}


def _instance(aws: Aws, id_: str, _props: Props) -> Props | None:
    answer = found(lambda: aws.ec2.describe_instances(InstanceIds=[id_]))
    rows = [one for reservation in (answer or {}).get("Reservations", []) for one in reservation["Instances"]]
    row = next((one for one in rows if one["State"]["Name"] not in GONE), None)
    return None if row is None else {"instanceType": row["InstanceType"]}


def _delete_instance(aws: Aws, id_: str, _props: Props) -> None:
    removed(lambda: aws.ec2.terminate_instances(InstanceIds=[id_]))
    aws.ec2.get_waiter("instance_terminated").wait(InstanceIds=[id_])


def _create_volume(aws: Aws, props: Props, tags: Tags) -> Made:
    made = aws.ec2.create_volume(
        VolumeType=props["type"],
        TagSpecifications=tagging("volume", tags),
        **asked(props, "availabilityZone size encrypted kmsKeyId"),
    )
    return made["VolumeId"], {}


def _volume(aws: Aws, id_: str, _props: Props) -> Props | None:
    row = one(aws, "Volumes", id_)
    return None if row is None else {"size": row["Size"], "type": row["VolumeType"]}


def _update_volume(aws: Aws, id_: str, news: Props, tags: Tags) -> Props:
    aws.ec2.modify_volume(VolumeId=id_, Size=news["size"], VolumeType=news["type"])
    return retag(aws, id_, news, tags)


def _attach(aws: Aws, props: Props, _tags: Tags) -> Made:
    aws.ec2.attach_volume(Device=props["deviceName"], **asked(props, "volumeId instanceId"))
    return f"vai-{props['volumeId']}-{props['instanceId']}", {}


def _attachment(aws: Aws, _id: str, props: Props) -> Props | None:
    row = one(aws, "Volumes", props["volumeId"])
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
        TagSpecifications=tagging("launch-template", tags),
    )["LaunchTemplate"]
    return made["LaunchTemplateId"], {"latestVersion": 1, "defaultVersion": 1}


def _template(aws: Aws, id_: str, _props: Props) -> Props | None:
    row = one(aws, "LaunchTemplates", id_)
    return None if row is None else {"latestVersion": row["LatestVersionNumber"]}


def _update_template(aws: Aws, id_: str, news: Props, tags: Tags) -> Props:
    made = aws.ec2.create_launch_template_version(
        LaunchTemplateId=id_, VersionDescription=news["description"], LaunchTemplateData=_template_data(news)
    )["LaunchTemplateVersion"]["VersionNumber"]
    if news.get("updateDefaultVersion"):
        aws.ec2.modify_launch_template(LaunchTemplateId=id_, DefaultVersion=str(made))
    retag(aws, id_, news, tags)
    return {"latestVersion": made, "defaultVersion": made}


def _create_placement(aws: Aws, props: Props, tags: Tags) -> Made:
    wanted = {"GroupName": props["name"], "Strategy": props["strategy"]}
    aws.ec2.create_placement_group(**wanted, TagSpecifications=tagging("placement-group", tags))
    return props["name"], {}


def _placement(aws: Aws, id_: str, _props: Props) -> Props | None:
    return None if one(aws, "PlacementGroups", id_, GroupNames=[id_]) is None else {}


KINDS = (
    Kind(
        "aws:ec2/instance:Instance",
        "ami instanceType primaryNetworkInterface userDataBase64 rootBlockDevice ebsOptimized iamInstanceProfile "
        "metadataOptions monitoring maintenanceOptions instanceInitiatedShutdownBehavior",
        _create_instance,
        _delete_instance,
        _instance,
        update=retag,
        tagged=True,
        nested={
            "metadataOptions": _METADATA,
            "primaryNetworkInterface": "networkInterfaceId",
            "rootBlockDevice": "volumeType volumeSize encrypted kmsKeyId deleteOnTermination tags",
            "maintenanceOptions": "autoRecovery",
        },
    ),
    Kind(
        "aws:ebs/volume:Volume",
        "availabilityZone! encrypted kmsKeyId",
        _create_volume,
        delete("ec2", "delete_volume", "VolumeId"),
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
        delete("ec2", "delete_launch_template", "LaunchTemplateId"),
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
        delete("ec2", "delete_placement_group", "GroupName"),
        _placement,
        # moto keeps tags by id, and knows none of these.
        update=lambda *_: {},
        tagged=True,
    ),
)
