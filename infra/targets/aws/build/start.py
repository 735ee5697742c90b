"""Turns the machines of a cluster on AWS into a Slurm cluster: access for people, compute nodes, reports, the gate."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from typing import Any

import pulumi

from bootstrap.training_environment import environment_folder
from cluster.catalog.interpreter import PYTHON
from cluster.inventory import Inventory, Role
from cluster.spec import ClusterSpec, NodeGroup
from infra.home import Home
from infra.plan import BuildPlan
from infra.targets.aws.build.access import Access
from infra.targets.aws.build.cluster import AwsCluster
from infra.targets.aws.build.gate import AwsGate, GateArgs
from infra.targets.aws.build.inventory import add_static_nodes, static_names
from infra.targets.aws.build.nodes import Nodes, NodesArgs
from infra.targets.aws.build.reports import NodeReports, NodeReportsArgs
from infra.targets.aws.plan import launch_template
from infra.targets.target import Context


def start_cluster(plan: BuildPlan, cluster: AwsCluster, context: Context) -> pulumi.Output[dict[str, Any]]:
    """Return the gate's result, available once a job has run across all static nodes."""
    # Access comes first, so that users can log in to a node that hangs.
    access = Access(
        "access",
        inventory=cluster.inventory,
        spec=context.spec,
        stack=context.stack,
        region=cluster.region,
        ssh_private_key=context.secrets.ssh_private_key,
        opts=pulumi.ResourceOptions(parent=cluster),
    )
    permanent = {role: _await_reports(cluster, role, {role: id_}, access) for role, id_ in cluster.instances.items()}
    groups = _create_groups(plan, context.spec, cluster, permanent["controller"])
    reports = list(permanent.values())
    if compute_nodes := static_names(plan):
        # No instance ids: the machine behind a name may change, because Slurm's side replaces broken ones.
        reports.append(_await_reports(cluster, "compute", dict.fromkeys(compute_nodes, ""), access, *groups))
    applied = pulumi.Output.all(*(report.applied for report in reports))
    gate = AwsGate(
        "ready",
        GateArgs(
            inventory=cluster.inventory.apply(partial(_add_static_nodes, cluster.domain)),
            environment=_environment(context),
            user=next(iter(context.spec.users)),
            applied=applied.apply(lambda times: " ".join(map(str, times))),
            region=cluster.region,
        ),
        pulumi.ResourceOptions(parent=cluster, depends_on=[*groups, *reports]),
    )
    return gate.ready


def _create_groups(plan: BuildPlan, spec: ClusterSpec, cluster: AwsCluster, controller: NodeReports) -> list[Nodes]:
    """Create one resource per group, also for groups without static nodes: it removes their nodes with the cluster.

    Static nodes are launched once the controller is ready: until then they could only wait, at the price of their GPUs.
    A group without them is created at once, so that even an `up` that fails leaves a group that teardown can remove.
    """
    return [
        Nodes(
            NodesArgs(
                group=node_set.group,
                static=node_set.static,
                count=node_set.count,
                machine=pulumi.Output.concat(
                    node_set.instance_type,
                    " ",
                    cluster.images[node_set.group],
                    " ",
                    node_set.fabric,
                    _describe_disk(spec.groups[node_set.group]),
                ),
                fleet=cluster.fleet,
            ),
            pulumi.ResourceOptions(
                parent=cluster,
                depends_on=[*cluster.compute_prerequisites, *([controller] if node_set.static else [])],
            ),
        )
        for node_set in plan.sets
    ]


def _describe_disk(group: NodeGroup) -> str:
    """Return the size of a root disk; empty for the default, so that older clusters keep their nodes."""
    size_gb = launch_template.root_gb(group)
    return "" if size_gb == launch_template.ROOT_GB else f" {size_gb} GB"


def _await_reports(
    cluster: AwsCluster, role: Role, instances: Mapping[str, pulumi.Input[str]], *after: pulumi.Resource
) -> NodeReports:
    args = NodeReportsArgs(
        cluster=cluster.cluster,
        stack=cluster.stack,
        region=cluster.region,
        nodes=pulumi.Output.all(**instances),
        bundle=cluster.node_files.bundle.apply(lambda packed: packed.digest),
        script=cluster.node_files.user_data[role],
    )
    options = pulumi.ResourceOptions(parent=cluster, depends_on=[*cluster.node_prerequisites, *after])
    return NodeReports(role, args, options)


def _add_static_nodes(domain: str, text: str) -> str:
    return add_static_nodes(domain, Inventory.model_validate_json(text)).model_dump_json()


def _environment(context: Context) -> str:
    """Return the folder in which nodes have the training environment of the spec's lock file."""
    lock = (Home.of(os.environ).repo / context.spec.software.training_lock).read_bytes()
    return environment_folder("/shared", lock, PYTHON)
