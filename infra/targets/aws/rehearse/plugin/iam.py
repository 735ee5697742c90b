"""IAM: roles with their policies, instance profiles, managed policies."""

from __future__ import annotations

from infra.targets.aws.rehearse.plugin.calls import read_existence
from infra.targets.aws.rehearse.plugin.kind import (
    Aws,
    Created,
    Kind,
    Props,
    Tags,
    delete_if_exists,
    get_if_exists,
    tag_list,
)


def _create_role(aws: Aws, props: Props, tags: Tags) -> Created:
    boundary = {"PermissionsBoundary": props["permissionsBoundary"]} if props.get("permissionsBoundary") else {}
    role = aws.iam.create_role(
        RoleName=props["name"],
        AssumeRolePolicyDocument=props["assumeRolePolicy"],
        Description=props.get("description") or "",
        Tags=tag_list(tags),
        **boundary,
    )["Role"]
    return props["name"], {"arn": role["Arn"]}


def _update_role(aws: Aws, id_: str, news: Props, tags: Tags) -> Props:
    aws.iam.update_assume_role_policy(RoleName=id_, PolicyDocument=news["assumeRolePolicy"])
    aws.iam.tag_role(RoleName=id_, Tags=tag_list(tags))
    return {}


def _delete_role(aws: Aws, id_: str, props: Props) -> None:
    attached = get_if_exists(lambda: aws.iam.list_attached_role_policies(RoleName=id_)) or {}
    for policy in attached.get("AttachedPolicies", ()) if props.get("forceDetachPolicies") else ():
        aws.iam.detach_role_policy(RoleName=id_, PolicyArn=policy["PolicyArn"])
    delete_if_exists(lambda: aws.iam.delete_role(RoleName=id_))


def _put_role_policy(aws: Aws, props: Props) -> None:
    aws.iam.put_role_policy(RoleName=props["role"], PolicyName=props["name"], PolicyDocument=props["policy"])


def _create_role_policy(aws: Aws, props: Props, _tags: Tags) -> Created:
    _put_role_policy(aws, props)
    return f"{props['role']}:{props['name']}", {}


def _update_role_policy(aws: Aws, _id: str, news: Props, _tags: Tags) -> Props:
    _put_role_policy(aws, news)
    return {}


def _role_policy(aws: Aws, _id: str, props: Props) -> Props | None:
    answer = get_if_exists(lambda: aws.iam.get_role_policy(RoleName=props["role"], PolicyName=props["name"]))
    return None if answer is None else {}


def _delete_role_policy(aws: Aws, _id: str, props: Props) -> None:
    delete_if_exists(lambda: aws.iam.delete_role_policy(RoleName=props["role"], PolicyName=props["name"]))


def _create_attachment(aws: Aws, props: Props, _tags: Tags) -> Created:
    aws.iam.attach_role_policy(RoleName=props["role"], PolicyArn=props["policyArn"])
    return f"{props['role']}-{props['policyArn']}", {}


def _read_attachment(aws: Aws, _id: str, props: Props) -> Props | None:
    answer = get_if_exists(lambda: aws.iam.list_attached_role_policies(RoleName=props["role"])) or {}
    attached = [policy["PolicyArn"] for policy in answer.get("AttachedPolicies", ())]
    return {} if props["policyArn"] in attached else None


def _delete_attachment(aws: Aws, _id: str, props: Props) -> None:
    delete_if_exists(lambda: aws.iam.detach_role_policy(RoleName=props["role"], PolicyArn=props["policyArn"]))


def _create_profile(aws: Aws, props: Props, tags: Tags) -> Created:
    name = props["name"]
    profile = aws.iam.create_instance_profile(InstanceProfileName=name, Tags=tag_list(tags))["InstanceProfile"]
    return name, {"arn": profile["Arn"]}


def _add_role(aws: Aws, id_: str, props: Props, _tags: Tags) -> Props:
    aws.iam.add_role_to_instance_profile(InstanceProfileName=id_, RoleName=props["role"])
    return {}


def _retag_profile(aws: Aws, id_: str, _news: Props, tags: Tags) -> Props:
    aws.iam.tag_instance_profile(InstanceProfileName=id_, Tags=tag_list(tags))
    return {}


def _delete_profile(aws: Aws, id_: str, props: Props) -> None:
    delete_if_exists(lambda: aws.iam.remove_role_from_instance_profile(InstanceProfileName=id_, RoleName=props["role"]))
    delete_if_exists(lambda: aws.iam.delete_instance_profile(InstanceProfileName=id_))


def _create_policy(aws: Aws, props: Props, tags: Tags) -> Created:
    policy = aws.iam.create_policy(
        PolicyName=props["name"], PolicyDocument=props["policy"], Description=props["description"], Tags=tag_list(tags)
    )["Policy"]
    return policy["Arn"], {"arn": policy["Arn"]}


def _delete_policy(aws: Aws, id_: str, _props: Props) -> None:
    versions = get_if_exists(lambda: aws.iam.list_policy_versions(PolicyArn=id_)) or {}
    for version in versions.get("Versions", ()):
        if not version["IsDefaultVersion"]:
            aws.iam.delete_policy_version(PolicyArn=id_, VersionId=version["VersionId"])
    delete_if_exists(lambda: aws.iam.delete_policy(PolicyArn=id_))


def _update_policy(aws: Aws, id_: str, news: Props, tags: Tags) -> Props:
    aws.iam.create_policy_version(PolicyArn=id_, PolicyDocument=news["policy"], SetAsDefault=True)
    aws.iam.tag_policy(PolicyArn=id_, Tags=tag_list(tags))
    return {}


KINDS = (
    Kind(
        "aws:iam/role:Role",
        "name",
        _create_role,
        _delete_role,
        read_existence("iam", "get_role", "RoleName"),
        change="assumeRolePolicy! description permissionsBoundary forceDetachPolicies",
        update=_update_role,
        computed="arn",
        tagged=True,
    ),
    Kind(
        "aws:iam/rolePolicy:RolePolicy",
        "name role!",
        _create_role_policy,
        _delete_role_policy,
        _role_policy,
        change="policy!",
        update=_update_role_policy,
    ),
    Kind(
        "aws:iam/rolePolicyAttachment:RolePolicyAttachment",
        "role! policyArn!",
        _create_attachment,
        _delete_attachment,
        _read_attachment,
    ),
    Kind(
        "aws:iam/instanceProfile:InstanceProfile",
        "name role",
        _create_profile,
        _delete_profile,
        read_existence("iam", "get_instance_profile", "InstanceProfileName"),
        update=_retag_profile,
        complete=_add_role,
        computed="arn",
        tagged=True,
    ),
    Kind(
        "aws:iam/policy:Policy",
        "name description",
        _create_policy,
        _delete_policy,
        read_existence("iam", "get_policy", "PolicyArn"),
        change="policy!",
        update=_update_policy,
        computed="arn",
        tagged=True,
    ),
)
