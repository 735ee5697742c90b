"""From machines to a Slurm cluster on AWS: access for people, nodes by name, their reports, the gate."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from hashlib import sha256
from typing import Any

import pulumi

from cluster.inventory import Inventory, Role
from infra.home import Home
from infra.plan import BuildPlan
from infra.targets.aws.build.access import Access
from infra.targets.aws.build.cluster import AwsCluster
from infra.targets.aws.build.gate import AwsGate, GateArgs
from infra.targets.aws.build.inventory import static_names, with_static
from infra.targets.aws.build.nodes import Nodes, NodesArgs
from infra.targets.aws.build.reported import Reported, ReportedArgs
from infra.targets.target import Context


def start(plan: BuildPlan, built: AwsCluster, context: Context) -> pulumi.Output[dict[str, Any]]:
    """What the gate found; known once a job has crossed every node that always exists."""
    access = Access(
        "access",
        inventory=built.inventory,
        spec=context.spec,
        stack=context.stack,
        region=built.region,
        ssh_private_key=context.secrets.ssh_private_key,
        opts=pulumi.ResourceOptions(parent=built),
    )
    # Access first: who waits for a node that hangs can look at it.
    reports = [_reported(built, role, {role: id_}, access) for role, id_ in built.instances.items()]
    launched = nodes(plan, built)
    if always := static_names(plan):
        # Whichever machine has the name: Slurm's side replaces broken ones.
        reports.append(_reported(built, "compute", dict.fromkeys(always, ""), access, *launched))
    gate = AwsGate(
        "ready",
        GateArgs(
            inventory=built.inventory.apply(partial(_with_static, built.domain)),
            environment=_environment(context),
            user=next(iter(context.spec.users)),
            applied=pulumi.Output.all(*(one.applied for one in reports)).apply(lambda said: " ".join(map(str, said))),
            region=built.region,
        ),
        pulumi.ResourceOptions(parent=built, depends_on=[*launched, *reports]),
    )
    return gate.ready


def nodes(plan: BuildPlan, built: AwsCluster) -> list[Nodes]:
    """One resource per group, also where all of its nodes come and go: it is what ends them with the cluster."""
    return [
        Nodes(
            NodesArgs(
                group=one.group,
                static=one.static,
                count=one.count,
                machine=pulumi.Output.concat(one.instance_type, " ", built.images[one.group], " ", one.fabric),
                fleet=built.fleet,
            ),
            pulumi.ResourceOptions(parent=built, depends_on=[*built.shipped, *built.ground]),
        )
        for one in plan.sets
    ]


def _reported(
    built: AwsCluster, role: Role, names: Mapping[str, pulumi.Input[str]], *after: pulumi.Resource
) -> Reported:
    args = ReportedArgs(
        cluster=built.cluster,
        region=built.region,
        nodes=pulumi.Output.all(**names),
        bundle=built.bundle.apply(lambda packed: packed.digest),
        script=built.scripts[role],
    )
    return Reported(role, args, pulumi.ResourceOptions(parent=built, depends_on=[*built.shipped, *after]))


def _with_static(domain: str, text: str) -> str:
    return with_static(domain, Inventory.model_validate_json(text)).model_dump_json()


def _environment(context: Context) -> str:
    """Where nodes have the training environment of this lock file."""
    lock = (Home.of(os.environ).repo / context.spec.software.training_lock).read_bytes()
    return f"/shared/env/{sha256(lock).hexdigest()[:16]}"
