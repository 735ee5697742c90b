"""Keys and secrets of a cluster: the KMS key, the SSH host keys, and SSM parameters from which nodes read secrets."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pulumi
import pulumi_aws as aws
from pulumi.dynamic import CreateResult, DiffResult, Resource, ResourceProvider, UpdateResult

from infra.resources import ssh_key
from infra.resources.properties import Properties
from infra.resources.secrets import ClusterSecrets
from infra.targets.aws.build.component import AwsComponent, Site
from infra.targets.aws.node import parameters
from infra.targets.aws.plan import iam
from infra.targets.aws.plan.iam import FIXED_ROLES, NODE_ROLES

# The shortest that AWS allows; until then a key, and with it what it encrypts, can be restored.
_KEY_DELETION_DAYS = 7


class Key(AwsComponent):
    """The KMS key that encrypts disks, files, logs and secrets: the one that the spec names, or a new one."""

    arn: pulumi.Output[str]

    def __init__(self, site: Site) -> None:
        super().__init__("Key", site)
        self.arn = pulumi.Output.from_input(site.aws.kms_key) if site.aws.kms_key else self._create()
        self.register_outputs({"arn": self.arn})

    def _create(self) -> pulumi.Output[str]:
        site = self.site
        # Storage and snapshots that outlive the cluster are readable only as long as their key exists.
        kept_storage = [s for s in site.spec.storage.values() if s.keep and s.kind in ("fsx-lustre", "efs")]
        retain = bool(kept_storage or site.aws.state_backup_days)
        policy = pulumi.Output.all(site.resolved.partition, site.resolved.account).apply(
            lambda values: json.dumps(iam.key_policy(values[0], site.aws.region, values[1], site.cluster))
        )
        key = aws.kms.Key(
            "key",
            description=f"muster cluster {site.cluster}",
            enable_key_rotation=True,
            deletion_window_in_days=_KEY_DELETION_DAYS,
            policy=policy,
            tags=self.name_tag(),
            opts=self.child_options(retain_on_delete=retain),
        )
        aws.kms.Alias("key", name=f"alias/{site.name()}", target_key_id=key.key_id, opts=self.child_options())
        return key.arn  # type: ignore[no-any-return]


class HostKeysProvider(ResourceProvider):
    """Pulumi provider of host keys; its inputs are cluster and names. Hosts that have a key keep it."""

    serialize_as_secret_always = False

    def create(self, props: Properties) -> CreateResult:
        return CreateResult(f"host-keys-{props['cluster']}", props | _generate_host_keys(props, {}))

    def diff(self, _id: str, olds: Properties, news: Properties) -> DiffResult:
        return DiffResult(changes=bool(set(news["names"]) - set(olds.get("public") or {})))

    def update(self, _id: str, olds: Properties, news: Properties) -> UpdateResult:
        return UpdateResult(news | _generate_host_keys(news, olds))


class HostKeys(Resource, module="muster", name="AwsHostKeys"):
    """SSH host keys by node name, generated before the machines exist, so that the first login can check them."""

    private: pulumi.Output[dict[str, str]]
    public: pulumi.Output[dict[str, str]]

    def __init__(self, name: str, *, cluster: str, names: Sequence[str], opts: pulumi.ResourceOptions) -> None:
        secret = pulumi.ResourceOptions(additional_secret_outputs=["private"])
        props = {"cluster": cluster, "names": list(names), "private": None, "public": None}
        super().__init__(HostKeysProvider(), name, props, pulumi.ResourceOptions.merge(opts, secret))

    @property
    def of_compute_nodes(self) -> pulumi.Output[str]:
        """The private keys of compute nodes by name, as a JSON document and a secret."""
        # Keys of roles are those of the controller and the login node, and one that compute nodes once shared.
        document = self.private.apply(
            lambda keys: json.dumps({name: key for name, key in sorted(keys.items()) if name not in NODE_ROLES})
        )
        return pulumi.Output.secret(document)


def _generate_host_keys(props: Properties, olds: Properties) -> Properties:
    private, public = dict(olds.get("private") or {}), dict(olds.get("public") or {})
    for name in props["names"]:
        if name not in public:
            key = ssh_key.generate(f"{name}.{props['cluster']}")
            private[name], public[name] = key.private, key.public
    return {"private": private, "public": public}


class Parameters(AwsComponent):
    """Secrets as SSM SecureStrings, which nodes read with their role; no user data, image or bucket holds them."""

    all: list[aws.ssm.Parameter]

    def __init__(
        self,
        site: Site,
        key_arn: pulumi.Input[str],
        secrets: ClusterSecrets,
        host_keys: HostKeys,
        webhook: pulumi.Output[str] | None = None,
    ) -> None:
        super().__init__("Parameters", site)
        self._key_arn, cluster = key_arn, site.cluster
        slurm_key, password = parameters.slurm_key(cluster), parameters.db_password(cluster)
        self.all = [
            self._create_secret("slurm-key", slurm_key, secrets.slurm_key, "authentication key of Slurm"),
            self._create_secret("db-password", password, secrets.db_password, "password of the accounting database"),
            *(
                self._create_secret(
                    f"host-key-{role}",
                    parameters.host_key(cluster, role),
                    host_keys.private[role],
                    f"SSH host key of {role}",
                )
                for role in FIXED_ROLES
            ),
        ]
        if webhook is not None:
            path = parameters.webhook(cluster)
            self.all.append(self._create_secret("webhook", path, webhook, "address that gets alerts"))
        self.register_outputs({})

    def _create_secret(self, name: str, path: str, value: pulumi.Output[str], description: str) -> aws.ssm.Parameter:
        return aws.ssm.Parameter(
            name,
            name=path,
            type="SecureString",
            key_id=self._key_arn,
            value=pulumi.Output.secret(value),  # type: ignore[arg-type]
            description=description,
            opts=self.child_options(),
        )
