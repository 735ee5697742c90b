"""From machines to a Slurm cluster on AWS: access for people, nodes by name, their reports, the gate."""

from __future__ import annotations

import os
from hashlib import sha256
from typing import Any

import pulumi

from infra.home import Home
from infra.targets.aws.access import Access
from infra.targets.aws.cluster import AwsCluster
from infra.targets.aws.gate import AwsGate, GateArgs
from infra.targets.target import Context


def start(built: AwsCluster, context: Context) -> pulumi.Output[dict[str, Any]]:
    """What the gate found; known once a job has crossed every node that always exists."""
    spec, region = context.spec, context.spec.aws.region if context.spec.aws else ""
    Access(
        "access",
        inventory=built.inventory,
        spec=spec,
        stack=context.stack,
        region=region,
        ssh_private_key=context.secrets.ssh_private_key,
        opts=pulumi.ResourceOptions(parent=built),
    )
    gate = AwsGate(
        "ready",
        GateArgs(
            inventory=built.inventory,
            environment=_environment(context),
            user=next(iter(spec.users)),
            applied=built.bundle.apply(lambda packed: packed.digest),
            region=region,
        ),
        pulumi.ResourceOptions(parent=built, depends_on=built.shipped),
    )
    return gate.ready


def _environment(context: Context) -> str:
    """Where nodes have the training environment of this lock file."""
    lock = (Home.of(os.environ).repo / context.spec.software.training_lock).read_bytes()
    return f"/shared/env/{sha256(lock).hexdigest()[:16]}"
