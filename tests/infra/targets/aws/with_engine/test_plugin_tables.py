"""The tables of the test plugin: exactly the types of the examples, with property names of the real SDK."""

from __future__ import annotations

import importlib
import inspect
import re

import pytest
from pulumi.runtime.proto import provider_pb2 as pb

from infra.targets.aws.rehearse.plugin.registry import KINDS
from infra.targets.aws.rehearse.plugin.serve import Provider, to_message
from tests.infra.targets.aws.build.capture import STACKS, example


@pytest.mark.parametrize("token", sorted(KINDS))
def test_properties_exist_in_the_sdk(token: str) -> None:
    assert KINDS[token].properties <= sdk_inputs(token)


def test_tables_match_the_types_and_properties_of_the_examples() -> None:
    used: dict[str, set[str]] = {}
    for stack in STACKS:
        for resource in example(stack):
            if resource.type.startswith("aws:"):
                used.setdefault(resource.type, set()).update(
                    key for key, value in resource.props.items() if value is not None
                )
    assert set(used) == set(KINDS)
    unknown = {token: names - KINDS[token].properties for token, names in used.items()}
    assert {token: names for token, names in unknown.items() if names} == {}


@pytest.mark.parametrize(
    ("token", "props", "reason"),
    [
        ("aws:sqs/queue:Queue", {}, "aws:sqs/queue:Queue: the test plugin has no such type"),
        ("aws:ec2/vpc:Vpc", {"cidrBlock": "10.0.0.0/16", "cidr": "x"}, "no such property of aws:ec2/vpc:Vpc"),
        ("aws:ec2/vpc:Vpc", {}, "aws:ec2/vpc:Vpc needs it"),
        (
            "aws:ec2/launchTemplate:LaunchTemplate",
            {"blockDeviceMappings": [{"cardIndex": 0}]},
            "no such property of aws:ec2/launchTemplate:LaunchTemplate",
        ),
    ],
)
def test_unknown_types_and_properties_are_rejected(token: str, props: dict[str, object], reason: str) -> None:
    request = pb.CheckRequest(urn=f"urn:pulumi:s::muster::{token}::x", news=to_message(props))
    assert [failure.reason for failure in Provider().Check(request, None).failures] == [reason]


def test_changes_of_immutable_properties_replace() -> None:
    def diff(**news: object) -> pb.DiffResponse:
        olds = {"cidrBlock": "10.0.0.0/16", "enableDnsSupport": True}
        urn = "urn:pulumi:s::muster::aws:ec2/vpc:Vpc::x"
        response: pb.DiffResponse = Provider().Diff(
            pb.DiffRequest(
                urn=urn,
                olds=to_message(olds | {"tagsAll": {}}),
                old_inputs=to_message(olds),
                news=to_message(olds | news),
            ),
            None,
        )
        return response

    assert diff().changes == pb.DiffResponse.DIFF_NONE
    assert list(diff(enableDnsSupport=False).replaces) == []
    assert list(diff(cidrBlock="10.1.0.0/16").replaces) == ["cidrBlock"]


def sdk_inputs(token: str) -> set[str]:
    """Return the inputs in the signature of the SDK's resource class."""
    _, module, name = token.split(":")
    library = importlib.import_module(f"pulumi_aws.{module.partition('/')[0]}")
    parameters = inspect.signature(getattr(library, name)._internal_init).parameters
    return {re.sub("_(.)", lambda match: match[1].upper(), name) for name in parameters}
