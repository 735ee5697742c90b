"""Rules for machines, networks, storage and logs: no public access, encryption, no secrets."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from policy.rule import Props, Rule

WORLD = "0.0.0.0/0"
_WEB_PORTS = ((80, 80), (443, 443))
_PRIVATE_KEY = "PRIVATE KEY"
# Longer than any id or name in base64's alphabet.
_ENCODED_MIN_CHARS = 1000

INSTANCE, TEMPLATE = "aws:ec2/instance:Instance", "aws:ec2/launchTemplate:LaunchTemplate"
INGRESS = "aws:vpc/securityGroupIngressRule:SecurityGroupIngressRule"
EGRESS = "aws:vpc/securityGroupEgressRule:SecurityGroupEgressRule"
GROUP, DEFAULT_GROUP = "aws:ec2/securityGroup:SecurityGroup", "aws:ec2/defaultSecurityGroup:DefaultSecurityGroup"
SUBNET = "aws:ec2/subnet:Subnet"


def _metadata(props: Props) -> Props:
    options: Props = props.get("metadataOptions") or {}
    return options


def _disks(props: Props) -> list[Props]:
    mapped = [mapping.get("ebs") or {} for mapping in props.get("blockDeviceMappings") or []]
    root = [props["rootBlockDevice"]] if props.get("rootBlockDevice") else []
    return [*mapped, *root, *(props.get("ebsBlockDevices") or [])]


def _encrypted(props: Props) -> bool:
    disks = _disks(props)
    return bool(disks) and all(str(disk.get("encrypted")).lower() == "true" for disk in disks)


def _private(props: Props) -> bool:
    interfaces = props.get("networkInterfaces") or []
    options = [entry.get("associatePublicIpAddress") for entry in (props, *interfaces)]
    return all(str(option).lower() != "true" for option in options)


def _cidrs(props: Props) -> list[str]:
    inline = [cidr for rule in props.get("ingress") or [] for cidr in rule.get("cidrBlocks") or []]
    return [cidr for cidr in (props.get("cidrIpv4"), props.get("cidrIpv6"), *inline) if cidr]


def _not_from_internet(props: Props) -> bool:
    return not {WORLD, "::/0"} & set(_cidrs(props))


def _only_web_ports(props: Props) -> bool:
    if WORLD not in _cidrs(props):
        return True
    ports = (props.get("fromPort"), props.get("toPort"))
    return props.get("ipProtocol") == "tcp" and ports in _WEB_PORTS


def _blocks_public(props: Props) -> bool:
    options = ("blockPublicAcls", "blockPublicPolicy", "ignorePublicAcls", "restrictPublicBuckets")
    return all(props.get(key) is True for key in options)


def _uses_kms(props: Props) -> bool:
    rules = props.get("rules") or []
    defaults = [rule.get("applyServerSideEncryptionByDefault") or {} for rule in rules]
    return bool(defaults) and all(
        default.get("sseAlgorithm") == "aws:kms" and default.get("kmsMasterKeyId") for default in defaults
    )


def _aborts_uploads(props: Props) -> bool:
    rules = [rule for rule in props.get("rules") or [] if rule.get("status") == "Enabled"]
    return any(rule.get("abortIncompleteMultipartUpload") for rule in rules)


def strings(value: Any) -> Iterator[str]:
    """Yield every text in a value; long base64, such as user data, also decoded."""
    if isinstance(value, str):
        yield value
        if len(value) > _ENCODED_MIN_CHARS and re.fullmatch(r"[A-Za-z0-9+/=]+", value):
            yield base64.b64decode(value).decode()
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from strings(item)
    elif isinstance(value, Sequence):
        for item in value:
            yield from strings(item)


def _has(name: str) -> Callable[[Props], bool]:
    return lambda props: bool(props.get(name))


_OPEN_DISK = {"blockDeviceMappings": [{"ebs": {"encrypted": "false"}}], "metadataOptions": {}}


RULES: tuple[Rule, ...] = (
    Rule(
        "CKV_AWS_79",
        "A machine answers only to IMDSv2.",
        (INSTANCE, TEMPLATE),
        lambda props: _metadata(props).get("httpTokens") == "required",
        ((INSTANCE, {}), (TEMPLATE, {"metadataOptions": {"httpTokens": "optional"}})),
    ),
    Rule(
        "CKV_AWS_341",
        "A machine's metadata is out of reach for containers (hop limit 1).",
        (INSTANCE, TEMPLATE),
        lambda props: _metadata(props).get("httpPutResponseHopLimit") == 1,
        ((TEMPLATE, {"metadataOptions": {"httpPutResponseHopLimit": 2}}), (INSTANCE, {})),
    ),
    Rule(
        "CKV_AWS_88",
        "A machine has no public address.",
        (INSTANCE, TEMPLATE),
        _private,
        (
            (INSTANCE, {"associatePublicIpAddress": True}),
            (TEMPLATE, {"networkInterfaces": [{}, {"associatePublicIpAddress": "true"}]}),
        ),
    ),
    Rule(
        "CKV_AWS_130",
        "A subnet assigns no public addresses.",
        (SUBNET,),
        lambda props: props.get("mapPublicIpOnLaunch") is False,
        ((SUBNET, {"mapPublicIpOnLaunch": True}), (SUBNET, {})),
    ),
    # Stricter than checkov, which checks only ports 22, 80 and 3389.
    Rule(
        "CKV_AWS_24",
        "No inbound rule is open to the internet.",
        (INGRESS, GROUP),
        _not_from_internet,
        (
            (INGRESS, {"cidrIpv4": "0.0.0.0/0", "fromPort": 443, "toPort": 443}),
            (INGRESS, {"cidrIpv6": "::/0"}),
            (GROUP, {"ingress": [{"cidrBlocks": ["0.0.0.0/0"]}]}),
        ),
    ),
    Rule(
        "CKV_AWS_382",
        "An outbound rule to the internet allows only ports 80 and 443.",
        (EGRESS,),
        _only_web_ports,
        ((EGRESS, {"cidrIpv4": "0.0.0.0/0", "ipProtocol": "-1"}),),
    ),
    Rule(
        "CKV_AWS_23",
        "Security groups and their rules have descriptions.",
        (INGRESS, EGRESS, GROUP),
        _has("description"),
        ((INGRESS, {}), (EGRESS, {"description": ""}), (GROUP, {})),
    ),
    Rule(
        "CKV2_AWS_12",
        "The default security group of a VPC has no rules.",
        (DEFAULT_GROUP,),
        lambda props: not props.get("ingress") and not props.get("egress"),
        ((DEFAULT_GROUP, {"ingress": [{"self": True}]}), (DEFAULT_GROUP, {"egress": [{"cidrBlocks": ["10.0.0.0/8"]}]})),
    ),
    Rule(
        "CKV_AWS_8",
        "Every disk of a machine is encrypted.",
        (INSTANCE, TEMPLATE),
        _encrypted,
        (
            (TEMPLATE, _OPEN_DISK),
            (INSTANCE, {"rootBlockDevice": {}}),
            (INSTANCE, {"rootBlockDevice": {"encrypted": True}, "ebsBlockDevices": [{"encrypted": False}]}),
        ),
    ),
    Rule(
        "CKV_AWS_3",
        "A volume is encrypted.",
        ("aws:ebs/volume:Volume",),
        lambda props: props.get("encrypted") is True,
        (("aws:ebs/volume:Volume", {"encrypted": False}),),
    ),
    Rule(
        "CKV_AWS_189",
        "A volume is encrypted with a customer-managed key.",
        ("aws:ebs/volume:Volume",),
        _has("kmsKeyId"),
        (("aws:ebs/volume:Volume", {"encrypted": True}),),
    ),
    Rule(
        "CKV_AWS_42",
        "An EFS filesystem is encrypted.",
        ("aws:efs/fileSystem:FileSystem",),
        lambda props: props.get("encrypted") is True,
        (("aws:efs/fileSystem:FileSystem", {}),),
    ),
    Rule(
        "CKV_AWS_184",
        "An EFS filesystem is encrypted with a customer-managed key.",
        ("aws:efs/fileSystem:FileSystem",),
        _has("kmsKeyId"),
        (("aws:efs/fileSystem:FileSystem", {"encrypted": True}),),
    ),
    Rule(
        "CKV_AWS_190",
        "An FSx for Lustre filesystem is encrypted with a customer-managed key.",
        ("aws:fsx/lustreFileSystem:LustreFileSystem",),
        _has("kmsKeyId"),
        (("aws:fsx/lustreFileSystem:LustreFileSystem", {}),),
    ),
    Rule(
        "CKV_AWS_53-56",
        "A bucket blocks public access in all four ways.",
        ("aws:s3/bucketPublicAccessBlock:BucketPublicAccessBlock",),
        _blocks_public,
        (
            (
                "aws:s3/bucketPublicAccessBlock:BucketPublicAccessBlock",
                {"blockPublicAcls": True, "blockPublicPolicy": True, "ignorePublicAcls": True},
            ),
        ),
    ),
    Rule(
        "CKV_AWS_145",
        "A bucket is encrypted with a customer-managed key.",
        ("aws:s3/bucketServerSideEncryptionConfiguration:BucketServerSideEncryptionConfiguration",),
        _uses_kms,
        (
            (
                "aws:s3/bucketServerSideEncryptionConfiguration:BucketServerSideEncryptionConfiguration",
                {"rules": [{"applyServerSideEncryptionByDefault": {"sseAlgorithm": "AES256"}}]},
            ),
        ),
    ),
    Rule(
        "CKV_AWS_21",
        "A bucket keeps versions.",
        ("aws:s3/bucketVersioning:BucketVersioning",),
        lambda props: (props.get("versioningConfiguration") or {}).get("status") == "Enabled",
        (("aws:s3/bucketVersioning:BucketVersioning", {"versioningConfiguration": {"status": "Suspended"}}),),
    ),
    Rule(
        "CKV_AWS_300",
        "A bucket aborts incomplete uploads.",
        ("aws:s3/bucketLifecycleConfiguration:BucketLifecycleConfiguration",),
        _aborts_uploads,
        (("aws:s3/bucketLifecycleConfiguration:BucketLifecycleConfiguration", {"rules": [{"status": "Enabled"}]}),),
    ),
    Rule(
        "CKV_AWS_186",
        "An object is encrypted with a customer-managed key.",
        ("aws:s3/bucketObjectv2:BucketObjectv2",),
        _has("kmsKeyId"),
        (("aws:s3/bucketObjectv2:BucketObjectv2", {"serverSideEncryption": "AES256"}),),
    ),
    Rule(
        "CKV_AWS_46",
        "User data holds no private keys.",
        (INSTANCE, TEMPLATE),
        lambda props: not any(_PRIVATE_KEY in text for text in strings(props)),
        ((TEMPLATE, {"userData": "BEGIN PRIVATE KEY"}), (INSTANCE, {"userData": "BEGIN PRIVATE KEY"})),
    ),
    Rule(
        "CKV_AWS_337",
        "A secret parameter is encrypted with a customer-managed key.",
        ("aws:ssm/parameter:Parameter",),
        lambda props: props.get("type") != "SecureString" or bool(props.get("keyId")),
        (("aws:ssm/parameter:Parameter", {"type": "SecureString"}),),
    ),
    Rule(
        "CKV_AWS_158",
        "A log group is encrypted with a customer-managed key.",
        ("aws:cloudwatch/logGroup:LogGroup",),
        _has("kmsKeyId"),
        (("aws:cloudwatch/logGroup:LogGroup", {}),),
    ),
    Rule(
        "CKV_AWS_66",
        "A log group has a retention time.",
        ("aws:cloudwatch/logGroup:LogGroup",),
        _has("retentionInDays"),
        (("aws:cloudwatch/logGroup:LogGroup", {"retentionInDays": 0}),),
    ),
    Rule(
        "CKV_AWS_135",
        "A machine is EBS-optimized.",
        (INSTANCE, TEMPLATE),
        lambda props: str(props.get("ebsOptimized")).lower() == "true",
        ((INSTANCE, {}), (TEMPLATE, {"ebsOptimized": "false"})),
    ),
)
