"""The table of resource kinds lists exactly what the examples create, with prices from the catalog."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from cluster.catalog.prices import service_price
from cluster.spec import ClusterSpec
from infra.targets.aws.resource_table import KINDS, actions, kinds
from infra.targets.registry import read_spec as read
from tests.infra.targets.aws.specs import spec

ROOT = Path(__file__).parents[5]
GOLDEN = sorted((ROOT / "tests" / "golden" / "aws").glob("*.json"))
_PROVIDERS = re.compile(r"^(aws:|pulumi-python:dynamic/)")


def list_types(golden: Path) -> set[str]:
    types = {resource["type"] for resource in json.loads(golden.read_text())}
    return {_PROVIDERS.sub("", name) for name in types if not name.startswith("pulumi:providers:")}


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda path: path.stem)
def test_the_table_lists_what_an_example_creates(golden: Path) -> None:
    listed = {kind.type for kind in kinds(read(ROOT / "stacks" / f"Pulumi.{golden.stem}.yaml"))}
    assert listed == list_types(golden)


def test_some_example_creates_every_kind_of_the_table() -> None:
    assert {kind.type for kind in KINDS} == set().union(*map(list_types, GOLDEN))


def test_prices_are_in_the_catalog() -> None:
    assert all(service_price(name).usd > 0 for kind in KINDS for name in kind.prices)


def test_actions_have_the_format_of_iam() -> None:
    actions_of_all_kinds = {action for kind in KINDS for action in kind.required_actions}
    assert [action for action in actions_of_all_kinds if not re.fullmatch(r"[a-z0-9]+:[A-Z][A-Za-z0-9]+", action)] == []


@pytest.mark.parametrize(
    ("changes", "action", "needed"),
    [
        ({}, "ec2:CreateVpc", True),
        ({"network": {"vpc_id": "vpc-0", "subnet_ids": ["subnet-0"]}}, "ec2:CreateVpc", False),
        ({"network": {"egress": False}}, "ec2:CreateNatGateway", False),
        ({"network": {"flow_logs": False}}, "ec2:CreateFlowLogs", False),
        ({}, "fsx:CreateFileSystem", False),
        ({"storage": {"shared": {"kind": "fsx-lustre"}}}, "fsx:CreateFileSystem", True),
        ({"budget": {"usd_per_month": 100.0}}, "budgets:ModifyBudget", True),
        ({"budget": {"usd_per_month": 100.0}}, "budgets:CreateBudgetAction", False),
    ],
)
def test_required_actions_depend_on_the_spec(changes: dict[str, object], action: str, needed: bool) -> None:
    described: ClusterSpec = spec(**changes)
    assert (action in actions(described)) is needed
