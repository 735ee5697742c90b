"""The resources that turn machines into a Slurm cluster: bootstrap over SSH, then the gate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pulumi

from infra.resources.ready import ReadyArgs, ReadyGate
from infra.resources.slurm_cluster import SlurmCluster, SlurmClusterArgs, bundle_digest

if TYPE_CHECKING:
    from infra.targets.target import Context


def start_slurm(inventory: pulumi.Output[str], context: Context) -> pulumi.Output[dict[str, Any]]:
    """Create the resources of the Slurm cluster and its gate; return the result of the gate."""
    spec, secrets = context.spec, context.secrets
    slurm = SlurmCluster(
        "slurm",
        SlurmClusterArgs(
            inventory=inventory,
            spec=spec.model_dump_json(),
            stack=context.stack,
            bundle=bundle_digest(spec),
            ssh_private_key=secrets.ssh_private_key,
            slurm_key=secrets.slurm_key,
            db_password=secrets.db_password,
            webhook=context.webhook,
        ),
    )
    gate = ReadyGate(
        "ready",
        ReadyArgs(
            inventory=inventory,
            environment=slurm.environment,
            user=next(iter(spec.users)),
            applied=slurm.applied_at,
            ssh_private_key=secrets.ssh_private_key,
        ),
        pulumi.ResourceOptions(depends_on=[slurm]),
    )
    return gate.ready
