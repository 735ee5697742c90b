"""The evaluator of IAM policies: denials win, wildcards and conditions count, everything else is denied."""

from __future__ import annotations

from typing import Any

import pytest

from infra.targets.aws.rehearse.policies import Authorization, is_allowed, list_denied

BUCKET = "arn:aws:s3:::bucket"
READ = {"Effect": "Allow", "Action": ["s3:GetObject"], "Resource": [f"{BUCKET}/bundle/*.tar"]}


def statement(**changes: Any) -> dict[str, Any]:
    return READ | changes


@pytest.mark.parametrize(
    ("action", "resource", "expected"),
    [
        ("s3:GetObject", f"{BUCKET}/bundle/abc.tar", True),
        ("S3:getobject", f"{BUCKET}/bundle/abc.tar", True),
        ("s3:PutObject", f"{BUCKET}/bundle/abc.tar", False),
        ("s3:GetObject", f"{BUCKET}/fleet.json", False),
        ("s3:GetObject", f"{BUCKET}/bundle/abc.tar.gz", False),
        ("s3:GetObject", f"{BUCKET}/BUNDLE/abc.tar", False),
    ],
)
def test_action_and_resource_must_match(action: str, resource: str, expected: bool) -> None:
    assert is_allowed([READ], Authorization(action, resource)) is expected


def test_a_denial_wins_over_an_allowance() -> None:
    needed = Authorization("s3:GetObject", f"{BUCKET}/bundle/abc.tar")
    denial = statement(Effect="Deny", Action="s3:*", Resource="*")
    assert not is_allowed([READ, denial], needed)
    assert not is_allowed([denial, READ], needed)
    assert not is_allowed([], needed)


@pytest.mark.parametrize(
    ("condition", "context", "expected"),
    [
        ({"StringEquals": {"aws:ResourceTag/a": "x"}}, {"aws:ResourceTag/a": "x"}, True),
        ({"StringEquals": {"aws:ResourceTag/a": ["w", "x"]}}, {"aws:ResourceTag/a": "x"}, True),
        ({"StringEquals": {"aws:ResourceTag/a": "x"}}, {"aws:ResourceTag/a": "X"}, False),
        ({"StringEquals": {"aws:ResourceTag/a": "x"}}, {}, False),
        ({"StringEquals": {"a": "x", "b": "y"}}, {"a": "x"}, False),
        ({"StringNotEquals": {"a": "x"}}, {"a": "x"}, False),
        ({"StringNotEquals": {"a": ["w", "x"]}}, {"a": "y"}, True),
        ({"StringNotEquals": {"a": "x"}}, {}, True),
        ({"StringLike": {"a": "x*"}}, {"a": "xyz"}, True),
        ({"ArnEquals": {"a": "arn:aws:iam::1:policy/p"}}, {"a": "arn:aws:iam::1:policy/q"}, False),
        ({"Bool": {"kms:GrantIsForAWSResource": "true"}}, {"kms:GrantIsForAWSResource": "true"}, True),
        ({"Bool": {"kms:GrantIsForAWSResource": "true"}}, {}, False),
        ({"Bool": {"a": True}}, {"a": "true"}, True),
        ({"StringNotLike": {"a": "x*"}}, {"a": "xyz"}, False),
        ({"ArnNotLike": {"a": "arn:aws:iam::1:role/*"}}, {}, True),
        ({"ArnNotEquals": {"a": "arn:aws:iam::1:role/r"}}, {"a": "arn:aws:iam::1:role/r"}, False),
        ({"Null": {"a": "true"}}, {}, True),
        ({"Null": {"a": False}}, {}, False),
        ({"StringEqualsIfExists": {"a": "x"}}, {}, True),
        ({"StringEqualsIfExists": {"a": "x"}}, {"a": "y"}, False),
    ],
)
def test_every_condition_must_be_met(condition: dict[str, Any], context: dict[str, str], expected: bool) -> None:
    needed = Authorization("s3:GetObject", f"{BUCKET}/bundle/abc.tar", context)
    assert is_allowed([statement(Condition=condition)], needed) is expected


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"NotAction": "s3:Put*"}, True),
        ({"NotAction": ["s3:Put*", "S3:get*"]}, False),
        ({"NotResource": f"{BUCKET}/secret/*"}, True),
        ({"NotResource": f"{BUCKET}/*"}, False),
    ],
)
def test_an_element_may_list_what_it_is_not_about(changes: dict[str, Any], expected: bool) -> None:
    negated = next(iter(changes)).removeprefix("Not")
    others = {key: value for key, value in READ.items() if key != negated}
    assert is_allowed([others | changes], Authorization("s3:GetObject", f"{BUCKET}/bundle/abc.tar")) is expected


def test_an_unknown_operator_is_not_guessed() -> None:
    needed = Authorization("s3:GetObject", f"{BUCKET}/bundle/abc.tar", {"a": "x"})
    with pytest.raises(KeyError, match="NumericLessThan"):
        is_allowed([statement(Condition={"NumericLessThan": {"a": "3"}})], needed)


def test_what_is_denied_is_listed() -> None:
    allowed, denied = (Authorization("s3:GetObject", f"{BUCKET}/{key}") for key in ("bundle/a.tar", "fleet.json"))
    assert list_denied([READ], [allowed, denied]) == [denied]


OWN = {**READ, "Resource": [f"{BUCKET}/${{ec2:SourceInstanceARN}}/*"]}


@pytest.mark.parametrize(
    ("key", "machine", "expected"),
    [("i-1/log", "i-1", True), ("i-2/log", "i-1", False), ("i-1", "i-1", False), ("*/log", "", False)],
)
def test_a_variable_stands_for_a_value_of_the_request(key: str, machine: str, expected: bool) -> None:
    context = {"ec2:SourceInstanceARN": machine} if machine else {}
    assert is_allowed([OWN], Authorization("s3:GetObject", f"{BUCKET}/{key}", context)) is expected


def test_a_variable_may_stand_in_a_condition() -> None:
    same = statement(Condition={"StringEquals": {"a": "${b}"}})
    for context, expected in (({"a": "x", "b": "x"}, True), ({"a": "x", "b": "y"}, False), ({"a": "x"}, False)):
        assert is_allowed([same], Authorization("s3:GetObject", f"{BUCKET}/bundle/abc.tar", context)) is expected


def test_a_value_with_wildcards_is_not_guessed() -> None:
    with pytest.raises(ValueError, match="has wildcards"):
        is_allowed([OWN], Authorization("s3:GetObject", f"{BUCKET}/i-2/log", {"ec2:SourceInstanceARN": "*"}))
