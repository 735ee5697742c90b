"""Rules about machines, networks, storage and logs: closed to the world, encrypted, without secrets."""

from __future__ import annotations

from collections.abc import Callable

from infra.targets.aws.plan.security import HTTP, HTTPS, WORLD
from tests.infra.targets.aws.build.capture import SECRETS, strings
from tests.infra.targets.aws.build.rule import Props, Rule

INSTANCE, TEMPLATE = "aws:ec2/instance:Instance", "aws:ec2/launchTemplate:LaunchTemplate"
INGRESS = "aws:vpc/securityGroupIngressRule:SecurityGroupIngressRule"
EGRESS = "aws:vpc/securityGroupEgressRule:SecurityGroupEgressRule"
GROUP, DEFAULT_GROUP = "aws:ec2/securityGroup:SecurityGroup", "aws:ec2/defaultSecurityGroup:DefaultSecurityGroup"
SUBNET = "aws:ec2/subnet:Subnet"


def _metadata(props: Props) -> Props:
    found: Props = props.get("metadataOptions") or {}
    return found


def _disks(props: Props) -> list[Props]:
    mapped = [one.get("ebs") or {} for one in props.get("blockDeviceMappings") or []]
    root = [props["rootBlockDevice"]] if props.get("rootBlockDevice") else []
    return [*mapped, *root, *(props.get("ebsBlockDevices") or [])]


def _encrypted(props: Props) -> bool:
    disks = _disks(props)
    return bool(disks) and all(str(one.get("encrypted")).lower() == "true" for one in disks)


def _private(props: Props) -> bool:
    interfaces = props.get("networkInterfaces") or []
    asked = [props.get("associatePublicIpAddress"), *(one.get("associatePublicIpAddress") for one in interfaces)]
    return all(str(one).lower() != "true" for one in asked)


def _cidrs(props: Props) -> list[str]:
    found = [props.get("cidrIpv4"), props.get("cidrIpv6")]
    inline = [cidr for one in props.get("ingress") or [] for cidr in one.get("cidrBlocks") or []]
    return [one for one in (*found, *inline) if one]


def _from_inside(props: Props) -> bool:
    return not {WORLD, "::/0"} & set(_cidrs(props))


def _narrow_out(props: Props) -> bool:
    """To the world only web ports."""
    if WORLD not in _cidrs(props):
        return True
    ports = (props.get("fromPort"), props.get("toPort"))
    return props.get("ipProtocol") == "tcp" and ports in (HTTP, HTTPS)


def _blocks_public(props: Props) -> bool:
    wanted = ("blockPublicAcls", "blockPublicPolicy", "ignorePublicAcls", "restrictPublicBuckets")
    return all(props.get(key) is True for key in wanted)


def _uses_kms(props: Props) -> bool:
    rules = props.get("rules") or []
    defaults = [one.get("applyServerSideEncryptionByDefault") or {} for one in rules]
    return bool(defaults) and all(
        one.get("sseAlgorithm") == "aws:kms" and one.get("kmsMasterKeyId") for one in defaults
    )


def _aborts_uploads(props: Props) -> bool:
    rules = [one for one in props.get("rules") or [] if one.get("status") == "Enabled"]
    return any(one.get("abortIncompleteMultipartUpload") for one in rules)


def _has_key(name: str) -> Callable[[Props], bool]:
    return lambda props: bool(props.get(name))


_OPEN_DISK = {"blockDeviceMappings": [{"ebs": {"encrypted": "false"}}], "metadataOptions": {}}


RULES: tuple[Rule, ...] = (
    Rule(
        "CKV_AWS_79",
        (INSTANCE, TEMPLATE),
        lambda props: _metadata(props).get("httpTokens") == "required",
        ((INSTANCE, {}), (TEMPLATE, {"metadataOptions": {"httpTokens": "optional"}})),
    ),
    Rule(
        "CKV_AWS_341",
        (INSTANCE, TEMPLATE),
        lambda props: _metadata(props).get("httpPutResponseHopLimit") == 1,
        ((TEMPLATE, {"metadataOptions": {"httpPutResponseHopLimit": 2}}), (INSTANCE, {})),
    ),
    Rule(
        "CKV_AWS_88",
        (INSTANCE, TEMPLATE),
        _private,
        (
            (INSTANCE, {"associatePublicIpAddress": True}),
            (TEMPLATE, {"networkInterfaces": [{}, {"associatePublicIpAddress": "true"}]}),
        ),
    ),
    Rule(
        "CKV_AWS_130",
        (SUBNET,),
        lambda props: props.get("mapPublicIpOnLaunch") is False,
        ((SUBNET, {"mapPublicIpOnLaunch": True}), (SUBNET, {})),
    ),
    # Stricter than checkov, which only looks at ports 22, 80 and 3389: nothing at all comes in from the world.
    Rule(
        "CKV_AWS_24",
        (INGRESS, GROUP),
        _from_inside,
        (
            (INGRESS, {"cidrIpv4": "0.0.0.0/0", "fromPort": 443, "toPort": 443}),
            (INGRESS, {"cidrIpv6": "::/0"}),
            (GROUP, {"ingress": [{"cidrBlocks": ["0.0.0.0/0"]}]}),
        ),
    ),
    Rule("CKV_AWS_382", (EGRESS,), _narrow_out, ((EGRESS, {"cidrIpv4": "0.0.0.0/0", "ipProtocol": "-1"}),)),
    Rule(
        "CKV_AWS_23",
        (INGRESS, EGRESS, GROUP),
        _has_key("description"),
        ((INGRESS, {}), (EGRESS, {"description": ""}), (GROUP, {})),
    ),
    Rule(
        "CKV2_AWS_12",
        (DEFAULT_GROUP,),
        lambda props: not props.get("ingress") and not props.get("egress"),
        ((DEFAULT_GROUP, {"ingress": [{"self": True}]}), (DEFAULT_GROUP, {"egress": [{"cidrBlocks": ["10.0.0.0/8"]}]})),
    ),
    Rule(
        "CKV_AWS_8",
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
        ("aws:ebs/volume:Volume",),
        lambda props: props.get("encrypted") is True,
        (("aws:ebs/volume:Volume", {"encrypted": False}),),
    ),
    Rule(
        "CKV_AWS_189",
        ("aws:ebs/volume:Volume",),
        _has_key("kmsKeyId"),
        (("aws:ebs/volume:Volume", {"encrypted": True}),),
    ),
    Rule(
        "CKV_AWS_42",
        ("aws:efs/fileSystem:FileSystem",),
        lambda props: props.get("encrypted") is True,
        (("aws:efs/fileSystem:FileSystem", {}),),
    ),
    Rule(
        "CKV_AWS_184",
        ("aws:efs/fileSystem:FileSystem",),
        _has_key("kmsKeyId"),
        (("aws:efs/fileSystem:FileSystem", {"encrypted": True}),),
    ),
    Rule(
        "CKV_AWS_190",
        ("aws:fsx/lustreFileSystem:LustreFileSystem",),
        _has_key("kmsKeyId"),
        (("aws:fsx/lustreFileSystem:LustreFileSystem", {}),),
    ),
    Rule(
        "CKV_AWS_53-56",
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
        ("aws:s3/bucketVersioning:BucketVersioning",),
        lambda props: (props.get("versioningConfiguration") or {}).get("status") == "Enabled",
        (("aws:s3/bucketVersioning:BucketVersioning", {"versioningConfiguration": {"status": "Suspended"}}),),
    ),
    Rule(
        "CKV_AWS_300",
        ("aws:s3/bucketLifecycleConfiguration:BucketLifecycleConfiguration",),
        _aborts_uploads,
        (("aws:s3/bucketLifecycleConfiguration:BucketLifecycleConfiguration", {"rules": [{"status": "Enabled"}]}),),
    ),
    Rule(
        "CKV_AWS_186",
        ("aws:s3/bucketObjectv2:BucketObjectv2",),
        _has_key("kmsKeyId"),
        (("aws:s3/bucketObjectv2:BucketObjectv2", {"serverSideEncryption": "AES256"}),),
    ),
    Rule(
        "CKV_AWS_46",
        (INSTANCE, TEMPLATE),
        lambda props: (
            not any(secret in text for text in strings(props) for secret in (*SECRETS.values(), "PRIVATE KEY"))
        ),
        ((TEMPLATE, {"userData": f"password={SECRETS['db_password']}"}), (INSTANCE, {"userData": "BEGIN PRIVATE KEY"})),
    ),
    Rule(
        "CKV_AWS_337",
        ("aws:ssm/parameter:Parameter",),
        lambda props: props.get("type") != "SecureString" or bool(props.get("keyId")),
        (("aws:ssm/parameter:Parameter", {"type": "SecureString"}),),
    ),
    Rule(
        "CKV_AWS_158",
        ("aws:cloudwatch/logGroup:LogGroup",),
        _has_key("kmsKeyId"),
        (("aws:cloudwatch/logGroup:LogGroup", {}),),
    ),
    Rule(
        "CKV_AWS_66",
        ("aws:cloudwatch/logGroup:LogGroup",),
        _has_key("retentionInDays"),
        (("aws:cloudwatch/logGroup:LogGroup", {"retentionInDays": 0}),),
    ),
    Rule(
        "CKV_AWS_135",
        (INSTANCE, TEMPLATE),
        lambda props: str(props.get("ebsOptimized")).lower() == "true",
        ((INSTANCE, {}), (TEMPLATE, {"ebsOptimized": "false"})),
    ),
)
