"""The order of the first `up`: what exists before a machine starts, and what waits for the controller."""

from __future__ import annotations

import pytest

from infra.targets.registry import read_spec as read
from tests.infra.targets.aws.build.capture import ROOT, STACKS, example, of_type

INSTANCE, NODES, REPORTED = "aws:ec2/instance:Instance", "pulumi-python:dynamic/muster:aws:Nodes", "muster:AwsReported"
ROUTE, ENDPOINT = "aws:ec2/route:Route", "aws:ec2/vpcEndpoint:VpcEndpoint"
CONTROLLER_REPORT = f"{REPORTED}::controller"


@pytest.mark.parametrize("stack", STACKS)
def test_static_nodes_are_launched_after_the_controllers_report(stack: str) -> None:
    for nodes in of_type(example(stack), NODES):
        waits = any(urn.endswith(CONTROLLER_REPORT) for urn in nodes.options["dependencies"])
        assert waits == (nodes.props["static"] > 0), nodes.label


def test_a_group_is_static_in_one_example_and_autoscaled_in_another() -> None:
    """Otherwise the test above would check only one of the two orders."""
    sizes = {nodes.props["static"] > 0 for stack in STACKS for nodes in of_type(example(stack), NODES)}
    assert sizes == {True, False}


@pytest.mark.parametrize("stack", STACKS)
def test_no_machine_starts_before_it_can_reach_packages_and_aws(stack: str) -> None:
    """Without its routes and endpoints, a machine cannot install, report or be reached."""
    resources = example(stack)
    required = {f"{resource.type}::{resource.name}" for resource in of_type(resources, ROUTE, ENDPOINT)}
    machines = of_type(resources, INSTANCE)
    assert machines
    for machine in machines:
        dependencies = {urn.rpartition("$")[2] for urn in machine.options["dependencies"]}
        assert required <= dependencies, machine.label
    if read(ROOT / "stacks" / f"Pulumi.{stack}.yaml").network.vpc_id is None:
        assert len(required) > 1
