"""What new machines start from: a bundle with code, wheels and the cluster's description, and the user data for it."""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import pulumi

from bootstrap import bundle as bundle_files
from bootstrap.bundle import pack_node
from bootstrap.wheels import Architecture, fetch_wheels
from cluster.catalog.interpreter import PYTHON
from cluster.inventory import Role
from infra.home import Home, private_folder
from infra.resources.secrets import ClusterSecrets
from infra.targets.aws.build.component import Site
from infra.targets.aws.build.file_systems import parse_mounts
from infra.targets.aws.build.foundation import Foundation
from infra.targets.aws.node import parameters
from infra.targets.aws.node.cloud import describe_cloud
from infra.targets.aws.plan import images, machines
from infra.targets.aws.plan.hooks import node_hooks
from infra.targets.aws.plan.iam import NODE_ROLES, jobs_role_arn
from infra.targets.aws.plan.user_data import user_data
from infra.targets.aws.spec import read_end

# What runs on this target's machines, besides what runs on every node. Their packages have no `__init__` there.
NODE_FOLDERS = ("infra/targets/aws/node", "infra/targets/aws/launcher")
ARCHITECTURES: Mapping[str, Architecture] = {"x86_64": "x86_64", "arm64": "aarch64"}
"""Names of AWS's architectures in wheels."""


@dataclass(frozen=True)
class PackedBundle:
    """A bundle as a file on this machine."""

    digest: str
    """Digest of the contents."""
    sha256: str
    """Checksum of the file."""
    path: str


@dataclass(frozen=True)
class NodeFiles:
    """The bundle in the bucket, and the scripts that fetch it."""

    bundle: pulumi.Output[PackedBundle]
    upload: pulumi.Resource
    user_data: dict[Role, pulumi.Output[str]]
    """User data by role, as plain text."""

    def encoded_user_data(self, role: Role) -> pulumi.Output[str]:
        """Return the user data of a role in base64, as AWS expects it."""
        return self.user_data[role].apply(lambda text: base64.b64encode(text.encode()).decode())


def create_node_files(
    site: Site,
    foundation: Foundation,
    *,
    state_volume: pulumi.Input[str],
    inventory: pulumi.Input[str],
    secrets: ClusterSecrets,
) -> NodeFiles:
    """Pack the bundle, upload it, and render the user data of every role."""

    def pack(values: Mapping[str, Any]) -> PackedBundle:
        cloud = describe_cloud(
            region=site.aws.region,
            bucket=values["bucket"],
            domain=foundation.zone.domain,
            state_volume=values["state_volume"],
            filesystems=parse_mounts(values["mounts"]),
            jobs_role=values["jobs_role"],
            hooks=node_hooks(site.aws),
            image_fix=images.image_fix(site.aws),
        )
        files = {
            bundle_files.SPEC: site.spec.model_dump_json(),
            bundle_files.INVENTORY: values["inventory"],
            bundle_files.CLOUD: cloud.model_dump_json(),
            bundle_files.PUBLIC_KEY: values["ssh_public_key"],
            bundle_files.SLURM_KEY_DIGEST: values["slurm_key_digest"],
        }
        return pack_bundle(site.stack, machines.controller(site.spec).architecture, files)

    bundle = pulumi.Output.all(
        bucket=foundation.bucket.name,
        state_volume=state_volume,
        mounts=foundation.file_systems.mounts,
        inventory=inventory,
        ssh_public_key=secrets.ssh_public_key,
        # Machines whose bundle differs read the key again. A digest of a random key does not reveal it.
        slurm_key_digest=pulumi.Output.unsecret(secrets.slurm_key).apply(_digest_key),
        jobs_role=_find_jobs_role(site),
    ).apply(pack)
    upload = foundation.bucket.put_bundle(
        bundle.apply(lambda packed: parameters.bundle(packed.sha256)),
        bundle.apply(lambda packed: pulumi.FileAsset(packed.path)),
    )
    bucket = foundation.bucket.name
    return NodeFiles(bundle, upload, {role: _render_user_data(site, role, bundle, bucket) for role in NODE_ROLES})


def _digest_key(slurm_key: str) -> str:
    return sha256(base64.b64decode(slurm_key)).hexdigest()


def _find_jobs_role(site: Site) -> pulumi.Output[str] | None:
    """Return the ARN of the role of jobs; None if there is none."""
    if not site.aws.policies.jobs:
        return None
    return pulumi.Output.all(site.resolved.partition, site.resolved.account).apply(
        lambda values: jobs_role_arn(values[0], values[1], site.cluster)
    )


def pack_bundle(stack: str, architecture: str, cluster_files: Mapping[str, str]) -> PackedBundle:
    """Write the bundle to the stack's folder, replacing the previous one."""
    home = Home.of(os.environ)
    content = {name: text.encode() for name, text in cluster_files.items()}
    bundle = pack_node(
        home.repo, fetch_wheels(home.repo, home.cache, ARCHITECTURES[architecture]), content, NODE_FOLDERS
    )
    folder = private_folder(home.stack(stack).folder) / "bundles"
    folder.mkdir(exist_ok=True)
    path = folder / f"{bundle.digest}.tar"
    for old in folder.glob("*.tar"):
        if old != path:
            old.unlink(missing_ok=True)
    _write_atomically(path, bundle.archive)
    return PackedBundle(bundle.digest, bundle.sha256, str(path))


def _render_user_data(
    site: Site, role: Role, bundle: pulumi.Output[PackedBundle], bucket: pulumi.Output[str]
) -> pulumi.Output[str]:
    def render(values: Mapping[str, Any]) -> str:
        packed: PackedBundle = values["bundle"]
        return user_data(
            bucket=values["bucket"],
            digest=packed.digest,
            sha256=packed.sha256,
            region=site.aws.region,
            role=role,
            cluster=site.cluster,
            python=PYTHON.archives[ARCHITECTURES[machines.controller(site.spec).architecture]],
            ends_at=read_end(site.aws),
        )

    return pulumi.Output.all(bundle=bundle, bucket=bucket).apply(render)


def _write_atomically(path: Path, data: bytes) -> None:
    # The Pulumi engine may read the file at any time.
    new = path.with_suffix(f".{os.getpid()}")
    new.write_bytes(data)
    new.replace(path)
