"""The order in which AWS evaluates policies: the examples and tables of its documentation, each with its result."""

from __future__ import annotations

from typing import Any

import pytest

from infra.targets.aws.plan import iam
from infra.targets.aws.rehearse.policies import Authorization, Statement
from infra.targets.aws.rehearse.policy_evaluation import Caller, Policies, explain_denial

ACCOUNT, OTHER_ACCOUNT = "111122223333", "999999999999"
ROOT = f"arn:aws:iam::{ACCOUNT}:root"
ROLE, SESSION = f"arn:aws:iam::{ACCOUNT}:role/app", f"arn:aws:sts::{ACCOUNT}:assumed-role/app/i-1"
CALLER = Caller(ROLE, SESSION)
KEY = f"arn:aws:kms:us-east-1:{ACCOUNT}:key/k-1"
BUCKET = "arn:aws:s3:::amzn-s3-demo-bucket"
READ = Authorization("s3:GetObject", f"{BUCKET}/file")
NONE = "no policy allows it"
BOUNDED = "the permissions boundary does not allow it"


def allow(action: str | list[str] = "s3:GetObject", resource: str | list[str] = "*", **more: Any) -> Statement:
    return {"Effect": "Allow", "Action": action, "Resource": resource, **more}


def deny(action: str | list[str] = "s3:GetObject", resource: str | list[str] = "*", **more: Any) -> Statement:
    return {**allow(action, resource, **more), "Effect": "Deny"}


# Example of an identity-based and a resource-based policy in
# https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_policies_evaluation-logic_policy-eval-basics.html
CARLOS = Caller(f"arn:aws:iam::{ACCOUNT}:user/carlossalazar")
OWN_BUCKET = "arn:aws:s3:::amzn-s3-demo-bucket-carlossalazar"
OF_CARLOS = (
    allow(["s3:GetBucketLocation", "s3:ListAllMyBuckets"], "arn:aws:s3:::*"),
    allow("s3:*", [OWN_BUCKET, f"{OWN_BUCKET}/*"]),
    deny("s3:*", "arn:aws:s3:::*log*"),
)
OF_HIS_BUCKET = (allow("s3:*", [OWN_BUCKET, f"{OWN_BUCKET}/*"], Principal={"AWS": CARLOS.arn}),)


@pytest.mark.parametrize(
    ("action", "resource", "expected"),
    [
        ("s3:PutObject", f"{OWN_BUCKET}/file", ""),
        ("s3:PutObject", f"{OWN_BUCKET}-logs/file", "a policy of the role denies it"),
        ("s3:GetBucketLocation", BUCKET, ""),
        ("s3:PutObject", f"{BUCKET}/file", NONE),
    ],
)
def test_example_of_a_user_and_his_bucket(action: str, resource: str, expected: str) -> None:
    policies = Policies(OF_CARLOS, None, OF_HIS_BUCKET if resource.startswith(f"{OWN_BUCKET}/") else ())
    assert explain_denial(policies, CARLOS, Authorization(action, resource)) == expected


# Example of a boundary in https://docs.aws.amazon.com/IAM/latest/UserGuide/access_policies_boundaries.html
SHIRLEY = Caller(f"arn:aws:iam::{ACCOUNT}:user/Shirley")
THREE_SERVICES = (allow(["s3:*", "cloudwatch:*", "ec2:*"]),)


@pytest.mark.parametrize(
    ("own", "action", "expected"),
    [
        ((allow("iam:CreateUser"),), "iam:CreateUser", BOUNDED),
        ((), "s3:ListBucket", NONE),
        ((allow("s3:*"),), "s3:ListBucket", ""),
    ],
)
def test_example_of_a_boundary_of_three_services(own: tuple[Statement, ...], action: str, expected: str) -> None:
    assert explain_denial(Policies(own, THREE_SERVICES), SHIRLEY, Authorization(action, "*")) == expected


# "Evaluating effective permissions with boundaries", on the same page.
@pytest.mark.parametrize(
    ("principal", "own", "boundary", "expected"),
    [
        # A policy of the resource that names a role is limited by a boundary, but needs no policy of the role.
        (ROLE, (), None, ""),
        (ROLE, (), (allow(),), ""),
        (ROLE, (allow(),), (), BOUNDED),
        (ROLE, (), (deny(),), "the permissions boundary denies it"),
        # One that names the session of a role, or everyone, is not limited by what a boundary leaves out.
        (SESSION, (), (), ""),
        ("*", (), (), ""),
        (SESSION, (), (deny(),), "the permissions boundary denies it"),
        (SESSION, (deny(),), None, "a policy of the role denies it"),
        # One that names the account only leaves the decision to the policies of its roles.
        (ROOT, (), None, NONE),
        (ACCOUNT, (), None, NONE),
        (ROOT, (allow(),), (), BOUNDED),
        (ROOT, (allow(),), (allow(),), ""),
        # Others are not the caller.
        (f"{ROLE}-2", (), None, NONE),
        (f"arn:aws:iam::{OTHER_ACCOUNT}:root", (), None, NONE),
    ],
)
def test_table_of_principals_and_boundaries(
    principal: str, own: tuple[Statement, ...], boundary: tuple[Statement, ...] | None, expected: str
) -> None:
    assert explain_denial(Policies(own, boundary, (allow(Principal={"AWS": principal}),)), CALLER, READ) == expected


def test_a_user_named_by_a_resource_is_not_limited_by_a_boundary() -> None:
    policies = Policies((), (), (allow(Principal={"AWS": [SHIRLEY.arn, ROLE]}),))
    assert explain_denial(policies, SHIRLEY, READ) == ""


@pytest.mark.parametrize("principal", ["*", {"AWS": "*"}, {"AWS": ROOT}, {"AWS": [ROLE]}, {"AWS": SESSION}])
def test_a_denial_of_the_resource_wins_whichever_way_it_names_the_caller(principal: Any) -> None:
    policies = Policies((allow(),), (allow(),), (allow(Principal="*"), deny(Principal=principal)))
    assert explain_denial(policies, CALLER, READ) == "the policy of the resource denies it"
    other = Caller(f"arn:aws:iam::{OTHER_ACCOUNT}:role/app", f"arn:aws:sts::{OTHER_ACCOUNT}:assumed-role/app/i-1")
    others = Policies((allow(),), (allow(),), (deny(Principal={"AWS": [ROOT, ROLE, SESSION]}),))
    assert explain_denial(others, other, READ) == ""


@pytest.mark.parametrize("principal", [{"Service": "s3.amazonaws.com"}, {"Federated": "accounts.google.com"}])
def test_services_and_federated_users_are_not_the_caller(principal: dict[str, str]) -> None:
    assert explain_denial(Policies((allow(),), None, (deny(Principal=principal),)), CALLER, READ) == ""


def test_an_element_that_is_not_evaluated_is_not_guessed() -> None:
    with pytest.raises(ValueError, match="NotPrincipal is not evaluated"):
        explain_denial(Policies((), None, (deny(NotPrincipal={"AWS": ROLE}),)), CALLER, READ)


# https://docs.aws.amazon.com/AmazonS3/latest/userguide/example-bucket-policies.html: only HTTPS.
@pytest.mark.parametrize(("tls", "expected"), [("true", ""), ("false", "the policy of the resource denies it")])
def test_our_bucket_refuses_requests_without_tls(tls: str, expected: str) -> None:
    policies = Policies((allow(),), None, iam.bucket_policy(BUCKET)["Statement"])
    needed = Authorization(READ.action, READ.resource, {"aws:SecureTransport": tls})
    assert explain_denial(policies, CALLER, needed) == expected


# https://docs.aws.amazon.com/AmazonS3/latest/userguide/example-bucket-policies-vpc-endpoint.html: only one VPC.
@pytest.mark.parametrize(("vpc", "expected"), [("vpc-1", ""), ("vpc-2", "the policy of the resource denies it")])
def test_example_of_a_bucket_that_only_a_vpc_may_use(vpc: str, expected: str) -> None:
    elsewhere = {"StringNotEquals": {"aws:SourceVpc": "vpc-1"}}
    denial = deny("s3:*", [BUCKET, f"{BUCKET}/*"], Principal="*", Condition=elsewhere)
    needed = Authorization(READ.action, READ.resource, {"aws:SourceVpc": vpc})
    assert explain_denial(Policies((allow(),), None, (denial,)), CALLER, needed) == expected


# https://docs.aws.amazon.com/kms/latest/developerguide/key-policy-default.html and policy-evaluation.html
UNSHARED = "the key's policy neither allows it nor leaves it to the policies of the account"
DECRYPT = Authorization("kms:Decrypt", KEY, {"kms:ViaService": "s3.us-east-1.amazonaws.com"})


@pytest.mark.parametrize(
    ("of_key", "own", "boundary", "expected"),
    [
        # The default policy leaves access to the policies of the account.
        (allow("kms:*", Principal={"AWS": ROOT}), (allow("kms:Decrypt", KEY),), None, ""),
        (allow("kms:*", Principal={"AWS": ROOT}), (), None, NONE),
        (allow("kms:*", Principal={"AWS": ROOT}), (allow("kms:Decrypt", KEY),), (allow("s3:*"),), BOUNDED),
        # Without it they have no effect.
        (allow("kms:*", Principal={"AWS": f"{ROLE}-2"}), (allow("kms:Decrypt", KEY),), None, UNSHARED),
        (allow("kms:Encrypt", Principal={"AWS": ROOT}), (allow("kms:Decrypt", KEY),), None, UNSHARED),
        # A key policy that names the role is sufficient, within the boundary.
        (allow("kms:Decrypt", Principal={"AWS": ROLE}), (), None, ""),
        (allow("kms:Decrypt", Principal={"AWS": ROLE}), (), (allow("s3:*"),), BOUNDED),
        # Policies of the account can still deny.
        (allow("kms:Decrypt", Principal={"AWS": ROLE}), (deny("kms:*"),), None, "a policy of the role denies it"),
    ],
)
def test_a_key_is_used_only_if_its_own_policy_allows_or_delegates_it(
    of_key: Statement, own: tuple[Statement, ...], boundary: tuple[Statement, ...] | None, expected: str
) -> None:
    assert explain_denial(Policies(own, boundary, (of_key,)), CALLER, DECRYPT) == expected


# https://docs.aws.amazon.com/kms/latest/developerguide/conditions-kms.html#conditions-kms-via-service
@pytest.mark.parametrize(("service", "expected"), [("s3", ""), ("ssm", UNSHARED)])
def test_example_of_a_key_that_only_a_service_may_use(service: str, expected: str) -> None:
    through = {"StringEquals": {"kms:ViaService": "s3.us-east-1.amazonaws.com"}}
    of_key = allow("kms:Decrypt", Principal={"AWS": ROLE}, Condition=through)
    needed = Authorization("kms:Decrypt", KEY, {"kms:ViaService": f"{service}.us-east-1.amazonaws.com"})
    assert explain_denial(Policies((), None, (of_key,)), CALLER, needed) == expected


def test_our_key_is_used_by_roles_of_the_account_as_their_policies_say_and_by_the_service_of_spot_instances() -> None:
    of_key = iam.key_policy("aws", "us-east-1", ACCOUNT, "demo")["Statement"]
    assert explain_denial(Policies((allow("kms:Decrypt", KEY),), None, of_key), CALLER, DECRYPT) == ""
    assert explain_denial(Policies((), None, of_key), CALLER, DECRYPT) == NONE
    spot = f"arn:aws:iam::{ACCOUNT}:role/aws-service-role/spot.amazonaws.com/AWSServiceRoleForEC2Spot"
    for arn, expected in ((spot, ""), (ROLE, NONE)):
        needed = Authorization("kms:Decrypt", KEY, {"aws:PrincipalArn": arn})
        assert explain_denial(Policies((), None, of_key), Caller(arn, f"{arn}/session"), needed) == expected


# "Delegating responsibility to others using permissions boundaries", on the page of boundaries: only roles with the
# boundary may be created, and the boundary itself may not be changed.
@pytest.mark.parametrize(
    ("action", "context", "expected"),
    [
        ("iam:CreateUser", {"iam:PermissionsBoundary": "arn:aws:iam::1:policy/x"}, ""),
        ("iam:CreateUser", {}, NONE),
        ("iam:DeletePolicy", {}, "a policy of the role denies it"),
        ("s3:GetObject", {}, ""),
    ],
)
def test_example_of_a_delegated_administrator(action: str, context: dict[str, str], expected: str) -> None:
    bounded = {"StringEquals": {"iam:PermissionsBoundary": "arn:aws:iam::1:policy/x"}}
    own = (
        allow("iam:CreateUser", Condition=bounded),
        deny(["iam:DeletePolicy", "iam:CreatePolicyVersion"]),
        {"Effect": "Allow", "NotAction": "iam:*", "Resource": "*"},
    )
    assert explain_denial(Policies(own), CALLER, Authorization(action, "*", context)) == expected
