"""Secrets as SSM SecureStrings: nodes fetch them with their role; they are in no user data, image or bucket."""

from __future__ import annotations

import pulumi
import pulumi_aws as aws

from infra.resources.secrets import ClusterSecrets
from infra.targets.aws.build.host_keys import HostKeys
from infra.targets.aws.build.part import Part, Site
from infra.targets.aws.node import parameters
from infra.targets.aws.plan.iam import NODE_ROLES


class Parameters(Part):
    def __init__(self, site: Site, key_arn: pulumi.Input[str], secrets: ClusterSecrets, host_keys: HostKeys) -> None:
        super().__init__("Parameters", site)
        self._key_arn, cluster = key_arn, site.cluster
        slurm_key, password = parameters.slurm_key(cluster), parameters.db_password(cluster)
        self.all = [
            self._secret("slurm-key", slurm_key, secrets.slurm_key, "authentication key of Slurm"),
            self._secret("db-password", password, secrets.db_password, "password of the accounting database"),
            *(
                self._secret(
                    f"host-key-{role}",
                    parameters.host_key(cluster, role),
                    host_keys.private[role],
                    f"SSH host key of {role}",
                )
                for role in NODE_ROLES
            ),
        ]
        self.register_outputs({})

    def _secret(self, name: str, path: str, value: pulumi.Output[str], description: str) -> aws.ssm.Parameter:
        return aws.ssm.Parameter(
            name,
            name=path,
            type="SecureString",
            key_id=self._key_arn,
            value=pulumi.Output.secret(value),  # type: ignore[arg-type]
            description=description,
            opts=self.child(),
        )
