"""The plugin's tables: the real names of what they have, every type of the examples, and nothing beyond."""

from __future__ import annotations

import importlib
import inspect
import re

import pytest
from pulumi.runtime.proto import provider_pb2 as pb

from tests.infra.targets.aws.build.capture import STACKS, example
from tests.infra.targets.aws.with_engine.plugin.kinds import KINDS
from tests.infra.targets.aws.with_engine.plugin.serve import Provider, message


@pytest.mark.parametrize("token", sorted(KINDS))
def test_properties_are_those_of_the_sdk(token: str) -> None:
    assert KINDS[token].properties <= sdk_inputs(token)


def test_tables_have_every_type_and_property_of_the_examples_and_no_others() -> None:
    used: dict[str, set[str]] = {}
    for stack in STACKS:
        for one in example(stack):
            if one.type.startswith("aws:"):
                used.setdefault(one.type, set()).update(key for key, value in one.props.items() if value is not None)
    assert set(used) == set(KINDS)
    unknown = {token: names - KINDS[token].properties for token, names in used.items()}
    assert {token: names for token, names in unknown.items() if names} == {}


@pytest.mark.parametrize(
    ("token", "props", "told"),
    [
        ("aws:sqs/queue:Queue", {}, "aws:sqs/queue:Queue: the test plugin has no such type"),
        ("aws:ec2/vpc:Vpc", {"cidrBlock": "10.0.0.0/16", "cidr": "x"}, "no such property of aws:ec2/vpc:Vpc"),
        ("aws:ec2/vpc:Vpc", {}, "aws:ec2/vpc:Vpc needs it"),
        (
            "aws:ec2/launchTemplate:LaunchTemplate",
            {"networkInterfaces": [{"cardIndex": 0}]},
            "no such property of aws:ec2/launchTemplate:LaunchTemplate",
        ),
    ],
)
def test_what_the_tables_do_not_have_is_refused(token: str, props: dict[str, object], told: str) -> None:
    request = pb.CheckRequest(urn=f"urn:pulumi:s::muster::{token}::x", news=message(props))
    assert [failure.reason for failure in Provider().Check(request, None).failures] == [told]


def test_a_change_of_what_cannot_be_changed_replaces() -> None:
    def diff(**news: object) -> pb.DiffResponse:
        olds = {"cidrBlock": "10.0.0.0/16", "enableDnsSupport": True}
        urn = "urn:pulumi:s::muster::aws:ec2/vpc:Vpc::x"
        made: pb.DiffResponse = Provider().Diff(
            pb.DiffRequest(
                urn=urn, olds=message(olds | {"tagsAll": {}}), old_inputs=message(olds), news=message(olds | news)
            ),
            None,
        )
        return made

    assert diff().changes == pb.DiffResponse.DIFF_NONE
    assert list(diff(enableDnsSupport=False).replaces) == []
    assert list(diff(cidrBlock="10.1.0.0/16").replaces) == ["cidrBlock"]


def sdk_inputs(token: str) -> set[str]:
    """From the signature of the class that the program uses."""
    _, module, name = token.split(":")
    library = importlib.import_module(f"pulumi_aws.{module.partition('/')[0]}")
    parameters = inspect.signature(getattr(library, name)._internal_init).parameters
    return {re.sub("_(.)", lambda found: found[1].upper(), one) for one in parameters}
