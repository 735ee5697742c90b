"""The permissions that docs/aws.md lists, and the pre-flight checks, are all that the traced calls of commands require.

The calls are those of a rehearsal of errors, which fails if a command makes one that its list lacks. They are made by
the test plugin and by muster; the AWS provider makes others, whose permissions come from its documentation.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from cluster.spec import ClusterSpec
from infra.targets.aws.rehearse.errors.call_sites import NUMBER, read_sites
from infra.targets.aws.rehearse.errors.engine_commands import COMMANDS
from infra.targets.aws.rehearse.errors.operation_runs import SWEEP
from infra.targets.aws.rehearse.errors.operations import SEARCH
from infra.targets.aws.resource_table import EVERY_STACK, KINDS, actions
from infra.targets.registry import read_spec
from tests.infra.targets.aws.call_permissions import list_actions

# docs/aws.md names these apart: without them, checks and prices are less complete.
OPTIONAL = {
    "ec2:DescribeCapacityReservations",
    "iam:SimulatePrincipalPolicy",
    "pricing:GetProducts",
    "servicequotas:GetAWSDefaultServiceQuota",
    "servicequotas:GetServiceQuota",
}
# The same for those of images.
IMAGES = {"ec2:CreateImage", "ec2:DeleteSnapshot", "ec2:DeregisterImage"}
# The search asks for these only if it has found a lifecycle policy, a filesystem or a key of the cluster.
OF_WHAT_IS_THERE = {"dlm:GetLifecyclePolicy", "elasticfilesystem:DescribeMountTargets", "kms:DescribeKey"}
STACKS = Path(__file__).parents[4] / "stacks"


def read_stack(name: str) -> ClusterSpec:
    return read_spec(STACKS / f"Pulumi.{name}.yaml")


def list_required(*commands: str) -> set[str]:
    sites = read_sites()
    return {action for name in commands for site in sites[name] for action in list_actions(site.partition(NUMBER)[0])}


def test_the_listed_permissions_are_sufficient_for_the_calls_of_every_command() -> None:
    listed = {action for kind in KINDS for action in kind.required_actions} | set(EVERY_STACK)
    assert sorted(list_required(*COMMANDS, SEARCH, SWEEP) - listed) == []
    assert list_required(*read_sites()) - listed == OPTIONAL | IMAGES


def test_every_stack_requires_those_of_the_search_for_leftovers() -> None:
    """The search lists all kinds of resources, whatever the stack has: without one of them, `teardown` fails."""
    assert list_required(SEARCH) - set(EVERY_STACK) == OF_WHAT_IS_THERE


@pytest.mark.parametrize("stack", ["aws-g6-pair", "aws-p5en-lustre", "aws-existing-vpc"])
def test_the_pre_flight_checks_them_for_every_stack(stack: str) -> None:
    assert set(EVERY_STACK) <= set(actions(read_stack(stack)))
