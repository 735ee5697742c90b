"""Everything of a cluster that needs no machine: network, keys, secrets, bucket, filesystems, DNS zone."""

from __future__ import annotations

from dataclasses import dataclass

import pulumi

from infra.resources.secrets import ClusterSecrets
from infra.targets.aws.build.bucket import Bucket
from infra.targets.aws.build.component import Site
from infra.targets.aws.build.file_systems import FileSystems
from infra.targets.aws.build.network import NameZone, Network
from infra.targets.aws.build.secrets import HostKeys, Key, Parameters
from infra.targets.aws.build.security_groups import SecurityGroups
from infra.targets.aws.node import parameters
from infra.targets.aws.plan import security


@dataclass(frozen=True)
class Foundation:
    """The components that machines are created on top of."""

    network: Network
    groups: SecurityGroups
    key_arn: pulumi.Output[str]
    parameters: Parameters
    bucket: Bucket
    host_keys: pulumi.Resource
    """Document with the host keys of compute nodes, which only those who launch them read."""
    file_systems: FileSystems
    zone: NameZone


def create_foundation(
    site: Site, secrets: ClusterSecrets, host_keys: HostKeys, webhook: pulumi.Output[str] | None = None
) -> Foundation:
    """Create the components that need no machine, in the order in which they need each other."""
    network = Network(site)
    groups = SecurityGroups(site, network)
    key_arn = Key(site).arn
    if security.ENDPOINTS in groups.ids:
        network.add_endpoints(groups.ids[security.ENDPOINTS])
    network.add_flow_log(key_arn)
    bucket = Bucket(site, key_arn)
    return Foundation(
        network=network,
        groups=groups,
        key_arn=key_arn,
        parameters=Parameters(site, key_arn, secrets, host_keys, webhook),
        bucket=bucket,
        host_keys=bucket.put_json(parameters.HOST_KEYS, host_keys.of_compute_nodes, secret=True),
        file_systems=FileSystems(site, network, groups, key_arn),
        zone=NameZone(site, network.vpc_id),
    )
