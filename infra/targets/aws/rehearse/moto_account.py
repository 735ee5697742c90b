"""The simulated account as the judge of permissions sees it: policies of roles, tags, templates and keys in moto."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from moto.ec2.models import ec2_backends
from moto.efs.models import efs_backends
from moto.fsx.models import fsx_backends
from moto.iam.models import iam_backends
from moto.kms.models import kms_backends
from moto.s3.models import s3_backends
from moto.ssm.models import ssm_backends
from moto.sts.models import sts_backends

from infra.targets.aws.rehearse.authorizations import Session, Template
from infra.targets.aws.rehearse.policies import Statement


@dataclass(frozen=True)
class MotoAccount:
    """The account of a rehearsal in one region."""

    id: str
    region: str

    def list_statements(self, role: str) -> list[Statement] | None:
        """Return the statements of all policies of a role; None if the role does not exist."""
        stored = self._find_role(role)
        if stored is None:
            return None
        documents = [*stored.policies.values(), *map(_read_document, stored.managed_policies.values())]
        return [statement for document in documents for statement in _list_statements(document)]

    def list_boundary(self, role: str) -> list[Statement] | None:
        """Return the statements of a role's permissions boundary; None if it has none."""
        stored = self._find_role(role)
        arn = stored.permissions_boundary_arn if stored else None
        return _list_statements(_read_document(iam_backends[self.id]["aws"].get_policy(arn))) if arn else None

    def list_resource_statements(self, arn: str) -> list[Statement]:
        """Return the statements of the policy of a bucket, for its objects too, or of a key."""
        service, path = arn.split(":", 5)[2::3] if arn.startswith("arn:") else ("", "")
        if service == "s3":
            bucket = s3_backends[self.id]["aws"].buckets.get(path.partition("/")[0])
            return _list_statements(bucket.policy) if bucket and bucket.policy else []
        if service == "kms":
            return _list_statements(kms_backends[self.id][self.region].describe_key(path.removeprefix("key/")).policy)
        return []

    def trusts(self, role_arn: str, caller: str) -> bool:
        """Return whether the trust policy of a role lets machines with another role assume it."""
        roles = iam_backends[self.id]["aws"].roles.values()
        stored = next((role for role in roles if role.arn == role_arn), None)
        if stored is None:
            return False
        statements = json.loads(stored.assume_role_policy_document)["Statement"]
        principals = [(statement.get("Principal") or {}).get("AWS") or [] for statement in statements]
        arns = [arn for each in principals for arn in ([each] if isinstance(each, str) else each)]
        return any(role.arn in arns for role in roles if role.name == caller)

    def find_session(self, access_key: str) -> Session | None:
        """Return the session of a role that has these credentials; None if they are of no role that was assumed."""
        assumed = sts_backends[self.id]["aws"].get_assumed_role_from_access_key(access_key)
        return Session(assumed.role_arn.rpartition("/")[2], assumed.session_name) if assumed else None

    def describe_source(self, service: str, vpc: str) -> Mapping[str, str]:
        """Return the VPC of a request, which AWS knows if it came through an endpoint of the service there."""
        name = f"com.amazonaws.{self.region}.{service}"
        has_endpoint = any(
            (endpoint.service_name, endpoint.vpc_id) == (name, vpc) and endpoint.state != "deleted"
            for endpoint in self._ec2.vpc_end_points.values()
        )
        return {"aws:SourceVpc": vpc} if has_endpoint else {}

    def list_billed(self) -> list[str]:
        """Return what exists and is billed by the hour, whatever its tags; machines are listed elsewhere."""
        ec2 = self._ec2
        return [
            *(f"volume {id_}" for id_ in ec2.volumes),
            *(f"address {address.allocation_id}" for address in ec2.addresses),
            *(f"NAT gateway {id_}" for id_, gateway in ec2.nat_gateways.items() if gateway.state != "deleted"),
            *(f"endpoint {id_}" for id_, endpoint in ec2.vpc_end_points.items() if endpoint.state != "deleted"),
            *(f"filesystem {id_}" for id_ in efs_backends[self.id][self.region].file_systems_by_id),
            *(f"filesystem {id_}" for id_ in fsx_backends[self.id][self.region].file_systems),
        ]

    def list_mountable(self) -> list[str]:
        """Return the filesystems that have a name in DNS: of EFS with a mount target, of FSx when available."""
        efs = efs_backends[self.id][self.region].file_systems_by_id
        fsx = fsx_backends[self.id][self.region].file_systems
        return [
            *(
                id_
                for id_, system in efs.items()
                if any(target.life_cycle_state == "available" for target in system.iter_mount_targets())
            ),
            *(id_ for id_, system in fsx.items() if system.to_dict()["Lifecycle"] == "AVAILABLE"),
        ]

    def list_file_systems(self) -> list[str]:
        """Return the ids of all filesystems, of EFS and FSx."""
        efs = efs_backends[self.id][self.region].file_systems_by_id
        return [*efs, *fsx_backends[self.id][self.region].file_systems]

    def tags(self, resource_id: str) -> Mapping[str, str]:
        backend = self._ec2
        groups = backend.__dict__.get("muster_placement_groups", {})
        if resource_id in groups:
            return {tag["Key"]: tag["Value"] for tag in groups[resource_id]["Tags"]}
        return dict(backend.tags.get(resource_id, {}))

    def template(self, id_: str, version: str) -> Template:
        stored = self._ec2.get_launch_template(id_)
        number = stored.latest_version_number if version == "$Latest" else stored.default_version_number
        data = stored.get_version(int(version) if version.isdigit() else number).data
        profile = data.get("IamInstanceProfile") or {}
        iam = iam_backends[self.id]["aws"]
        roles = [
            role.arn
            for stored_profile in iam.instance_profiles.values()
            if stored_profile.arn == profile.get("Arn") or stored_profile.name == profile.get("Name")
            for role in stored_profile.roles
        ]
        disks = [mapping.get("Ebs") or {} for mapping in data.get("BlockDeviceMappings") or []]
        return Template(
            image=data.get("ImageId", ""),
            instance_type=data.get("InstanceType", ""),
            role_arn=roles[0] if roles else "",
            disk_keys=tuple(dict.fromkeys(disk["KmsKeyId"] for disk in disks if disk.get("KmsKeyId"))),
            tags={entry["ResourceType"]: _read_tags(entry) for entry in data.get("TagSpecifications") or []},
        )

    def parameter_key(self, name: str) -> str:
        versions = ssm_backends[self.id][self.region]._parameters.get(name) or []
        key = versions[-1].keyid if versions and versions[-1].parameter_type == "SecureString" else ""
        return self._key_arn(key or "")

    def bucket_key(self, bucket: str) -> str:
        stored = s3_backends[self.id]["aws"].buckets.get(bucket)
        encryption = (stored.encryption or {}) if stored else {}
        rule = encryption.get("Rule", {}).get("ApplyServerSideEncryptionByDefault", {})
        return self._key_arn(rule.get("KMSMasterKeyID") or "")

    def _find_role(self, name: str) -> Any:
        """Return a role of moto, or None."""
        return next((role for role in iam_backends[self.id]["aws"].roles.values() if role.name == name), None)

    def _key_arn(self, key: str) -> str:
        """Return the ARN of a key that is given by its id, its ARN or an alias."""
        if not key or key.startswith("arn:"):
            return key
        kms = kms_backends[self.id][self.region]
        id_ = kms.get_key_id_from_alias(key) if key.startswith("alias/") else key
        return str(kms.describe_key(id_).arn) if id_ else ""

    @property
    def _ec2(self) -> Any:
        return ec2_backends[self.id][self.region]


def _read_document(policy: Any) -> str:
    """Return the document of a managed policy that is in force."""
    return next(str(version.document) for version in policy.versions if version.is_default)


def _list_statements(document: str | bytes) -> list[Statement]:
    """Return the statements of a document, which may be a single one without a list."""
    statements = json.loads(document)["Statement"]
    return statements if isinstance(statements, list) else [statements]


def _read_tags(entry: Mapping[str, Any]) -> dict[str, str]:
    tags = entry.get("Tags") or entry.get("Tag") or []
    return {tag["Key"]: tag["Value"] for tag in tags}
