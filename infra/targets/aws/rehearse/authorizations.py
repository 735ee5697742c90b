"""The permissions that a machine's calls need, as AWS's service authorization reference lists them for each call."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from infra.targets.aws.rehearse.policies import Authorization

# What creating an encrypted disk needs of the key, besides a grant.
# https://docs.aws.amazon.com/ebs/latest/userguide/ebs-encryption-requirements.html
_DISK_KEY = ("Decrypt", "DescribeKey", "GenerateDataKeyWithoutPlaintext", "ReEncryptFrom", "ReEncryptTo")
# Permissions by method of a request for an object: on the object, and on the key that encrypts it.
_S3_ACTIONS = {
    "GET": ("GetObject", "Decrypt"),
    "HEAD": ("GetObject", "Decrypt"),
    "PUT": ("PutObject", "GenerateDataKey"),
    "DELETE": ("DeleteObject", ""),
}
_ZONE = re.compile(r"/2013-04-01/hostedzone/([^/]+)/rrset/?")


@dataclass(frozen=True)
class Template:
    """What a launch template adds to a launch."""

    image: str = ""
    instance_type: str = ""
    role_arn: str = ""
    """Role of its instance profile."""
    disk_keys: tuple[str, ...] = ()
    """ARNs of the keys that encrypt its disks."""
    tags: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Tags of what is launched from it, by kind of resource."""


@dataclass(frozen=True)
class Session:
    """A role that a machine has assumed for the programs of users."""

    role: str
    machine: str
    """Id of the instance that assumed it, which muster gives to the session as its name."""


class Account(Protocol):
    """What an account has, as far as permissions depend on it."""

    @property
    def id(self) -> str:
        """Number of the account."""

    @property
    def region(self) -> str:
        """Region of every call."""

    def tags(self, resource_id: str, /) -> Mapping[str, str]:
        """Return the tags of a resource of EC2, by its id or, for a placement group, its name."""

    def template(self, id_: str, version: str, /) -> Template:
        """Return a launch template."""

    def parameter_key(self, name: str, /) -> str:
        """Return the ARN of the key that encrypts a parameter; empty if none does."""

    def bucket_key(self, bucket: str, /) -> str:
        """Return the ARN of the key that encrypts a bucket by default; empty if none does."""


def list_authorizations(
    account: Account, service: str, action: str, params: Mapping[str, str]
) -> Iterator[Authorization]:
    """Yield every permission that a call needs; for calls without an entry here, the action on `*`.

    `action` and `params` are those of a recorded call. Raise ValueError for a call of S3 that is not in the table.
    """
    if service == "s3":
        yield from _list_s3(account, *action.split(" ", 1))
    elif service == "ssm":
        yield from _list_ssm(account, action, json.loads(params["body"]))
    elif service == "ec2" and action == "RunInstances":
        yield from _list_launch(account, params)
    elif service == "ec2" and action == "TerminateInstances":
        yield from (
            Authorization("ec2:TerminateInstances", _ec2(account, "instance", id_), _resource_tags(account.tags(id_)))
            for id_ in _values(params, "InstanceId")
        )
    elif service == "route53" and (zone := _ZONE.fullmatch(action.partition(" ")[2])):
        yield Authorization("route53:ChangeResourceRecordSets", f"arn:aws:route53:::hostedzone/{zone[1]}")
    elif (service, action) == ("sts", "GetCallerIdentity"):
        # https://docs.aws.amazon.com/STS/latest/APIReference/API_GetCallerIdentity.html: no permission is required.
        return
    elif (service, action) == ("sts", "AssumeRole"):
        yield Authorization("sts:AssumeRole", params["RoleArn"])
    elif service == "budgets":
        budget = json.loads(params["body"]).get("BudgetName", "")
        yield Authorization("budgets:ViewBudget", f"arn:aws:budgets::{account.id}:budget/{budget}")
    else:
        yield Authorization(f"{service}:{action}", "*")


def _list_s3(account: Account, method: str, path: str) -> Iterator[Authorization]:
    bucket, _, name = path.lstrip("/").partition("/")
    if method not in _S3_ACTIONS or not name:
        raise ValueError(f"{method} {path} is no request for an object that is known; known: {', '.join(_S3_ACTIONS)}")
    action, key_action = _S3_ACTIONS[method]
    yield Authorization(f"s3:{action}", f"arn:aws:s3:::{bucket}/{name}")
    if key_action and (key := account.bucket_key(bucket)):
        yield _use_key(account, key, key_action, "s3")


def _list_ssm(account: Account, action: str, body: Mapping[str, object]) -> Iterator[Authorization]:
    names = body.get("Names") or [body.get("Name")]
    if not isinstance(names, list) or names == [None]:
        yield Authorization(f"ssm:{action}", "*")
        return
    for name in map(str, names):
        yield Authorization(f"ssm:{action}", f"arn:aws:ssm:{account.region}:{account.id}:parameter{name}")
        if body.get("WithDecryption") and (key := account.parameter_key(name)):
            yield _use_key(account, key, "Decrypt", "ssm")


def _list_launch(account: Account, params: Mapping[str, str]) -> Iterator[Authorization]:
    template_id = params.get("LaunchTemplate.LaunchTemplateId", "")
    version = params.get("LaunchTemplate.Version", "$Default")
    template = account.template(template_id, version) if template_id else Template()
    from_template = {"ec2:LaunchTemplate": _ec2(account, "launch-template", template_id)} if template_id else {}
    requested = _requested_tags(params)
    is_spot = params.get("InstanceMarketOptions.MarketType") == "spot"
    for kind in ("instance", "volume", "network-interface", *(("spot-instances-request",) if is_spot else ())):
        tags = {**template.tags.get(kind, {}), **requested.get(kind, {})}
        context = {f"aws:RequestTag/{key}": value for key, value in tags.items()}
        instance_type = params.get("InstanceType") or template.instance_type
        more = {**from_template, "ec2:InstanceType": instance_type} if kind == "instance" else from_template
        yield Authorization("ec2:RunInstances", _ec2(account, kind, "*"), {**context, **more})
        if tags:
            yield Authorization(
                "ec2:CreateTags", _ec2(account, kind, "*"), {**context, "ec2:CreateAction": "RunInstances"}
            )
    ours = [("launch-template", template_id)] if template_id else []
    ours += [
        ("security-group", id_) for id_ in dict.fromkeys(_values(params, r"NetworkInterface\.\d+\.SecurityGroupId"))
    ]
    ours += [("placement-group", params["Placement.GroupName"])] if "Placement.GroupName" in params else []
    for kind, id_ in ours:
        yield Authorization("ec2:RunInstances", _ec2(account, kind, id_), _resource_tags(account.tags(id_)))
    for subnet in dict.fromkeys(_values(params, r"NetworkInterface\.\d+\.SubnetId", numbered=False)):
        yield Authorization("ec2:RunInstances", _ec2(account, "subnet", subnet), _resource_tags(account.tags(subnet)))
    image = params.get("ImageId") or template.image
    of_template = {**from_template, "ec2:IsLaunchTemplateResource": "false" if "ImageId" in params else "true"}
    yield Authorization("ec2:RunInstances", f"arn:aws:ec2:{account.region}::image/{image}", of_template)
    if template.role_arn:
        yield Authorization("iam:PassRole", template.role_arn, {"iam:PassedToService": "ec2.amazonaws.com"})
    for key in template.disk_keys:
        yield from (_use_key(account, key, action, "ec2") for action in _DISK_KEY)
        yield _use_key(account, key, "CreateGrant", "ec2", {"kms:GrantIsForAWSResource": "true"})


def _use_key(
    account: Account, key: str, action: str, service: str, more: Mapping[str, str] | None = None
) -> Authorization:
    context = {"kms:ViaService": f"{service}.{account.region}.amazonaws.com", **(more or {})}
    return Authorization(f"kms:{action}", key, context)


def _ec2(account: Account, kind: str, id_: str) -> str:
    return f"arn:aws:ec2:{account.region}:{account.id}:{kind}/{id_}"


def _resource_tags(tags: Mapping[str, str]) -> dict[str, str]:
    return {f"aws:ResourceTag/{key}": value for key, value in tags.items()}


def _requested_tags(params: Mapping[str, str]) -> dict[str, dict[str, str]]:
    tags: dict[str, dict[str, str]] = {}
    for name, kind in params.items():
        if match := re.fullmatch(r"TagSpecification\.(\d+)\.ResourceType", name):
            prefix = rf"TagSpecification\.{match[1]}\.Tag"
            keys = _values(params, rf"{prefix}\.\d+\.Key", numbered=False)
            values = _values(params, rf"{prefix}\.\d+\.Value", numbered=False)
            tags[kind] = dict(zip(keys, values, strict=True))
    return tags


def _values(params: Mapping[str, str], pattern: str, *, numbered: bool = True) -> Sequence[str]:
    """Return the values of all parameters whose names match, in order; `numbered` adds the number of a list item."""
    whole = re.compile(rf"{pattern}\.\d+" if numbered else pattern)
    return [value for name, value in params.items() if whole.fullmatch(name)]
