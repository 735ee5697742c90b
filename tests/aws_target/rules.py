"""Security rules over captured resources, by the ids that checkov gives them; each a plain function of properties.

Checkov itself reads Terraform; these read what the engine gets, where no translation can hide a property."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from infra.plan.aws.security import HTTP, HTTPS, WORLD
from tests.aws_target.capture import SECRETS, strings

Props = dict[str, Any]
INSTANCE, TEMPLATE = "aws:ec2/instance:Instance", "aws:ec2/launchTemplate:LaunchTemplate"
INGRESS = "aws:vpc/securityGroupIngressRule:SecurityGroupIngressRule"
EGRESS = "aws:vpc/securityGroupEgressRule:SecurityGroupEgressRule"
GROUP, DEFAULT_GROUP = "aws:ec2/securityGroup:SecurityGroup", "aws:ec2/defaultSecurityGroup:DefaultSecurityGroup"
SUBNET, INTERFACE = "aws:ec2/subnet:Subnet", "aws:ec2/networkInterface:NetworkInterface"
ROLE, ROLE_POLICY, POLICY = "aws:iam/role:Role", "aws:iam/rolePolicy:RolePolicy", "aws:iam/policy:Policy"


@dataclass(frozen=True)
class Rule:
    id: str
    types: tuple[str, ...]
    holds: Callable[[Props], bool]
    bad: tuple[tuple[str, Props], ...]
    """What it must find: a resource of each kind that breaks it."""


def findings(type_: str, props: Props) -> Iterator[str]:
    for rule in RULES:
        if type_ in rule.types and not rule.holds(props):
            yield rule.id


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


def _statements(props: Props) -> list[Props]:
    found: list[Props] = json.loads(props.get("policy") or "{}").get("Statement", [])
    return found


def _listed(value: Any) -> list[str]:
    return [value] if isinstance(value, str) else list(value or [])


def _allowed(props: Props) -> Iterator[tuple[list[str], list[str], Props]]:
    for one in _statements(props):
        if one["Effect"] == "Allow":
            yield _listed(one.get("Action")), _listed(one.get("Resource")), one.get("Condition") or {}


def _no_star_action(props: Props) -> bool:
    return not any(action == "*" or action.endswith(":*") for actions, _, _ in _allowed(props) for action in actions)


# Actions for which AWS defines no resource; the policies say so where they use them.
WITHOUT_RESOURCE = ("ec2:Describe", "ssmmessages:", "ec2messages:")


def _no_star_resource(props: Props) -> bool:
    return all(
        "*" not in resources or all(action.startswith(WITHOUT_RESOURCE) for action in actions)
        for actions, resources, _ in _allowed(props)
    )


_BOUND = ("ResourceTag", "RequestTag", "CreateAction", "SourceInstanceARN")
# Whole kinds of resources may be named only with a condition, or where a node speaks of itself.
_KINDS = ("instance/*", "volume/*", "network-interface/*", "launch-template/*", "security-group/*", "placement-group/*")
_OF_ITSELF = ("ssm:UpdateInstanceInformation",)


def _whole_kinds_are_bound(props: Props) -> bool:
    for actions, resources, condition in _allowed(props):
        bound = any(word in key for operator in condition.values() for key in operator for word in _BOUND)
        whole = any(one.endswith(_KINDS) for one in resources)
        if whole and not bound and set(actions) - set(_OF_ITSELF):
            return False
    return True


def _passes_named_roles(props: Props) -> bool:
    return all(
        "iam:PassRole" not in actions or (all("*" not in one for one in resources) and "StringEquals" in condition)
        for actions, resources, condition in _allowed(props)
    )


_TRUSTED = {"ec2.amazonaws.com", "budgets.amazonaws.com", "vpc-flow-logs.amazonaws.com"}


def _trusts_one_service(props: Props) -> bool:
    for one in json.loads(props["assumeRolePolicy"])["Statement"]:
        principal = one["Principal"]
        if not isinstance(principal, dict) or set(principal) != {"Service"} or principal["Service"] not in _TRUSTED:
            return False
        if principal["Service"] != "ec2.amazonaws.com" and "aws:SourceAccount" not in json.dumps(one.get("Condition")):
            return False
    return True


def _key_is_ours(props: Props) -> bool:
    """`*` as principal only where a condition names who is meant."""
    return all(
        one["Principal"] != "*"
        and (one["Principal"] != {"AWS": "*"} or "aws:PrincipalArn" in json.dumps(one.get("Condition")))
        for one in _statements(props)
    )


def _tls_only(props: Props) -> bool:
    return any(
        one["Effect"] == "Deny"
        and one["Principal"] == "*"
        and one["Action"] == "s3:*"
        and one.get("Condition") == {"Bool": {"aws:SecureTransport": "false"}}
        for one in _statements(props)
    )


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
_BAD_DOC = {"Statement": [{"Effect": "Allow", "Action": "*", "Resource": "*"}]}


def _doc(**statement: Any) -> Props:
    return {"policy": json.dumps({"Statement": [{"Effect": "Allow", **statement}]})}


def _trust(principal: Any) -> Props:
    return {"assumeRolePolicy": json.dumps({"Statement": [{"Effect": "Allow", "Principal": principal}]})}


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
        "S3_TLS_ONLY",
        ("aws:s3/bucketPolicy:BucketPolicy",),
        _tls_only,
        (("aws:s3/bucketPolicy:BucketPolicy", _doc(Action="s3:GetObject", Principal="*", Resource="*")),),
    ),
    Rule(
        "CKV_AWS_186",
        ("aws:s3/bucketObjectv2:BucketObjectv2",),
        _has_key("kmsKeyId"),
        (("aws:s3/bucketObjectv2:BucketObjectv2", {"serverSideEncryption": "AES256"}),),
    ),
    Rule(
        "CKV_AWS_62/63",
        (ROLE_POLICY, POLICY),
        _no_star_action,
        ((ROLE_POLICY, {"policy": json.dumps(_BAD_DOC)}), (POLICY, _doc(Action=["s3:*"], Resource="arn:x"))),
    ),
    Rule(
        "CKV_AWS_355",
        (ROLE_POLICY, POLICY),
        _no_star_resource,
        ((ROLE_POLICY, _doc(Action=["ec2:TerminateInstances"], Resource="*")),),
    ),
    Rule(
        "WHOLE_KINDS",
        (ROLE_POLICY, POLICY),
        _whole_kinds_are_bound,
        ((ROLE_POLICY, _doc(Action=["ec2:TerminateInstances"], Resource=["arn:aws:ec2:r:a:instance/*"])),),
    ),
    Rule(
        "PASS_ROLE",
        (ROLE_POLICY, POLICY),
        _passes_named_roles,
        (
            (ROLE_POLICY, _doc(Action=["iam:PassRole"], Resource=["arn:aws:iam::1:role/*"])),
            (ROLE_POLICY, _doc(Action=["iam:PassRole"], Resource=["arn:aws:iam::1:role/one"])),
        ),
    ),
    Rule(
        "CKV_AWS_60/61",
        (ROLE,),
        _trusts_one_service,
        (
            (ROLE, _trust({"AWS": "*"})),
            (ROLE, _trust("*")),
            (ROLE, _trust({"Service": "lambda.amazonaws.com"})),
            (ROLE, _trust({"Service": "budgets.amazonaws.com"})),
        ),
    ),
    Rule(
        "CKV_AWS_274",
        (ROLE,),
        lambda props: not props.get("managedPolicyArns"),
        ((ROLE, _trust({"Service": "ec2.amazonaws.com"}) | {"managedPolicyArns": ["arn:aws:iam::aws:policy/x"]}),),
    ),
    Rule(
        "CKV_AWS_7",
        ("aws:kms/key:Key",),
        lambda props: props.get("enableKeyRotation") is True,
        (("aws:kms/key:Key", {"policy": "{}"}),),
    ),
    Rule(
        "CKV_AWS_33",
        ("aws:kms/key:Key",),
        _key_is_ours,
        (("aws:kms/key:Key", _doc(Principal="*")), ("aws:kms/key:Key", _doc(Principal={"AWS": "*"}))),
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
