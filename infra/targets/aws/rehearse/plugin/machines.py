"""EC2 instances, volumes, launch templates and placement groups."""

from __future__ import annotations

from base64 import b64decode

from infra.targets.aws.rehearse.plugin.calls import delete, read_existence
from infra.targets.aws.rehearse.plugin.ec2 import GONE, find_row, retag, tagging
from infra.targets.aws.rehearse.plugin.kind import (
    Aws,
    Created,
    Kind,
    Props,
    Tags,
    call_parameters,
    delete_if_exists,
    get_if_exists,
    tag_list,
    to_api,
)

_METADATA = "httpEndpoint httpPutResponseHopLimit httpTokens instanceMetadataTags"
_MACHINE = "instanceType metadataOptions ebsOptimized maintenanceOptions instanceInitiatedShutdownBehavior"
# Ten minutes, as by default.
_POLL_S, _POLLS = 0.5, 1200


def _create_instance(aws: Aws, props: Props, tags: Tags) -> Created:
    root = {key: value for key, value in props["rootBlockDevice"].items() if key != "tags"}
    # The disk gets the provider's default tags, but not those of the instance.
    disk_tags = {key: value for key, value in tags.items() if key not in (props.get("tags") or {})}
    disk_tags |= props["rootBlockDevice"].get("tags") or {}
    interface = {"DeviceIndex": 0, "NetworkInterfaceId": props["primaryNetworkInterface"]["networkInterfaceId"]}
    instance = aws.ec2.run_instances(
        ImageId=props["ami"],
        MinCount=1,
        MaxCount=1,
        NetworkInterfaces=[interface],
        IamInstanceProfile={"Name": props["iamInstanceProfile"]},
        # boto3 encodes it again.
        UserData=b64decode(props["userDataBase64"]).decode(),
        BlockDeviceMappings=[{"DeviceName": "/dev/sda1", "Ebs": to_api(root)}],
        Monitoring={"Enabled": bool(props.get("monitoring"))},
        TagSpecifications=[*tagging("instance", tags), *tagging("volume", disk_tags)],
        **call_parameters(props, _MACHINE),
    )["Instances"][0]
    return instance["InstanceId"], {}


def _instance(aws: Aws, id_: str, _props: Props) -> Props | None:
    answer = get_if_exists(lambda: aws.ec2.describe_instances(InstanceIds=[id_]))
    rows = [instance for reservation in (answer or {}).get("Reservations", []) for instance in reservation["Instances"]]
    row = next((instance for instance in rows if instance["State"]["Name"] not in GONE), None)
    return None if row is None else {"instanceType": row["InstanceType"]}


def _delete_instance(aws: Aws, id_: str, _props: Props) -> None:
    delete_if_exists(lambda: aws.ec2.terminate_instances(InstanceIds=[id_]))
    _wait_for_state(aws, "instance_terminated", id_)


def _create_volume(aws: Aws, props: Props, tags: Tags) -> Created:
    volume = aws.ec2.create_volume(
        VolumeType=props["type"],
        TagSpecifications=tagging("volume", tags),
        **call_parameters(props, "availabilityZone size encrypted kmsKeyId"),
    )
    return volume["VolumeId"], {}


def _lifecycle(props: Props) -> Props:
    """Return a lifecycle policy as the API takes it: tags as lists, and the hour of a schedule in a list."""
    details = to_api(props["policyDetails"])
    details["TargetTags"] = tag_list(props["policyDetails"]["targetTags"])
    for schedule, given in zip(details["Schedules"], props["policyDetails"]["schedules"], strict=True):
        schedule["TagsToAdd"] = tag_list(given["tagsToAdd"])
        schedule["CreateRule"]["Times"] = [given["createRule"]["times"]]
    return call_parameters(props, "description executionRoleArn state") | {"PolicyDetails": details}


def _create_lifecycle_policy(aws: Aws, props: Props, tags: Tags) -> Created:
    return aws.dlm.create_lifecycle_policy(**_lifecycle(props), Tags=tags)["PolicyId"], {}


def _update_lifecycle_policy(aws: Aws, id_: str, news: Props, _tags: Tags) -> Props:
    aws.dlm.update_lifecycle_policy(PolicyId=id_, **_lifecycle(news))
    return {}


def _volume(aws: Aws, id_: str, _props: Props) -> Props | None:
    row = find_row(aws, "Volumes", id_)
    return None if row is None else {"size": row["Size"], "type": row["VolumeType"]}


def _update_volume(aws: Aws, id_: str, news: Props, tags: Tags) -> Props:
    aws.ec2.modify_volume(VolumeId=id_, Size=news["size"], VolumeType=news["type"])
    return retag(aws, id_, news, tags)


def _attach(aws: Aws, props: Props, _tags: Tags) -> Created:
    aws.ec2.attach_volume(Device=props["deviceName"], **call_parameters(props, "volumeId instanceId"))
    return f"vai-{props['volumeId']}-{props['instanceId']}", {}


def _attachment(aws: Aws, _id: str, props: Props) -> Props | None:
    row = find_row(aws, "Volumes", props["volumeId"])
    attached = [attachment["InstanceId"] for attachment in (row or {}).get("Attachments", [])]
    return {} if props["instanceId"] in attached else None


def _detach(aws: Aws, _id: str, props: Props) -> None:
    if props.get("stopInstanceBeforeDetaching"):
        aws.ec2.stop_instances(InstanceIds=[props["instanceId"]])
        _wait_for_state(aws, "instance_stopped", props["instanceId"])
    delete_if_exists(lambda: aws.ec2.detach_volume(**call_parameters(props, "volumeId instanceId")), "IncorrectState")


def _wait_for_state(aws: Aws, waiter: str, id_: str) -> None:
    """Wait for a state of an instance; by default boto3 looks every 15 s, which is longer than a rehearsal takes."""
    aws.ec2.get_waiter(waiter).wait(InstanceIds=[id_], WaiterConfig={"Delay": _POLL_S, "MaxAttempts": _POLLS})


_TEMPLATE = (
    "imageId instanceType iamInstanceProfile userData metadataOptions blockDeviceMappings "
    "instanceInitiatedShutdownBehavior ebsOptimized monitoring tagSpecifications instanceMarketOptions "
    "capacityReservationSpecification"
)


def _template_data(props: Props) -> Props:
    """Return the data of a launch template in the format of the API, which has lists of tags."""
    data = call_parameters(props, _TEMPLATE)
    data["TagSpecifications"] = [
        {"ResourceType": specification["resourceType"], "Tags": tag_list(specification["tags"])}
        for specification in props["tagSpecifications"]
    ]
    return data


def _create_template(aws: Aws, props: Props, tags: Tags) -> Created:
    template = aws.ec2.create_launch_template(
        LaunchTemplateName=props["name"],
        VersionDescription=props["description"],
        LaunchTemplateData=_template_data(props),
        TagSpecifications=tagging("launch-template", tags),
    )["LaunchTemplate"]
    return template["LaunchTemplateId"], {"latestVersion": 1, "defaultVersion": 1}


def _template(aws: Aws, id_: str, _props: Props) -> Props | None:
    row = find_row(aws, "LaunchTemplates", id_)
    return None if row is None else {"latestVersion": row["LatestVersionNumber"]}


def _update_template(aws: Aws, id_: str, news: Props, tags: Tags) -> Props:
    version = aws.ec2.create_launch_template_version(
        LaunchTemplateId=id_, VersionDescription=news["description"], LaunchTemplateData=_template_data(news)
    )["LaunchTemplateVersion"]["VersionNumber"]
    if news.get("updateDefaultVersion"):
        aws.ec2.modify_launch_template(LaunchTemplateId=id_, DefaultVersion=str(version))
    retag(aws, id_, news, tags)
    return {"latestVersion": version, "defaultVersion": version}


def _create_placement(aws: Aws, props: Props, tags: Tags) -> Created:
    parameters = {"GroupName": props["name"], "Strategy": props["strategy"]}
    aws.ec2.create_placement_group(**parameters, TagSpecifications=tagging("placement-group", tags))
    return props["name"], {}


def _placement(aws: Aws, id_: str, _props: Props) -> Props | None:
    return None if find_row(aws, "PlacementGroups", id_, GroupNames=[id_]) is None else {}


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
        "aws:dlm/lifecyclePolicy:LifecyclePolicy",
        "",
        _create_lifecycle_policy,
        delete("dlm", "delete_lifecycle_policy", "PolicyId"),
        read_existence("dlm", "get_lifecycle_policy", "PolicyId"),
        change="description! executionRoleArn! state policyDetails!",
        update=_update_lifecycle_policy,
        tagged=True,
        nested={
            "policyDetails": "resourceTypes targetTags schedules name createRule interval intervalUnit times "
            "retainRule count copyTags tagsToAdd Name muster.keep"
        },
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
        # moto stores tags by id, but has no ids of placement groups.
        update=lambda *_: {},
        tagged=True,
    ),
)
