"""The table of validators; each is a pure function from a spec to issues."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from cluster.spec import ClusterSpec
from cluster.spec.issue import Issue
from infra.targets.aws.validate import budget as aws_budget
from infra.targets.aws.validate import capacity as aws_capacity
from infra.targets.aws.validate import fabric as aws_fabric
from infra.targets.aws.validate import machines as aws_machines
from infra.targets.aws.validate import network as aws_network
from infra.targets.aws.validate import only as aws_only
from infra.targets.aws.validate import power as aws_power
from infra.targets.aws.validate import section as aws_section
from infra.targets.aws.validate import software as aws_software
from infra.targets.aws.validate import storage as aws_storage
from infra.targets.aws.validate import tags as aws_tags
from infra.targets.local import host
from infra.targets.local.host import EngineFacts
from infra.validate import budget, groups, labels, network, slurm_options, software, storage, target, users

Rule = Callable[[ClusterSpec], Iterator[Issue]]

SPEC_RULES: tuple[Rule, ...] = (
    groups.cluster_name,
    target.available,
    groups.counts,
    groups.bounds,
    groups.some_compute,
    groups.reserved,
    groups.node_names,
    target.machines,
    target.fabrics,
    target.gpus,
    target.autoscaling,
    network.login_port,
    network.login_size,
    network.cidr,
    network.room,
    target.storage_kinds,
    storage.shared,
    storage.system_mounts,
    storage.nested_mounts,
    storage.sizes,
    users.names,
    users.uids,
    users.ssh_keys,
    slurm_options.default_group,
    slurm_options.times,
    slurm_options.time_order,
    slurm_options.extra_keys,
    slurm_options.extra_values,
    software.training_lock,
    labels.tags,
    budget.order,
)
AWS_RULES: tuple[Rule, ...] = (
    aws_section.present,
    aws_section.region,
    aws_section.zones,
    aws_section.group_zones,
    aws_section.ids,
    aws_machines.given,
    aws_machines.in_catalog,
    aws_machines.offered,
    aws_machines.gpus,
    aws_machines.trainium,
    aws_machines.idle_gpus,
    aws_machines.controller_size,
    aws_machines.burstable,
    aws_machines.architecture,
    aws_fabric.supported,
    aws_fabric.one_zone,
    aws_fabric.one_subnet,
    aws_fabric.unused,
    aws_fabric.alone,
    aws_fabric.scattered,
    aws_fabric.ip_bandwidth,
    aws_capacity.sold,
    aws_capacity.reservation_named,
    aws_capacity.reservation_format,
    aws_capacity.reservation_shared,
    aws_capacity.reservation_zones,
    aws_capacity.fallback,
    aws_capacity.placement,
    aws_capacity.placement_zones,
    aws_capacity.block_size,
    aws_capacity.spot_static,
    aws_power.resume,
    aws_power.retries,
    aws_network.existing,
    aws_network.formats,
    aws_network.zones_of_subnets,
    aws_network.range_size,
    aws_network.room,
    aws_network.images_offline,
    aws_network.names_offline,
    aws_network.login_port,
    aws_storage.fields,
    aws_storage.lustre,
    aws_storage.lustre_efa_step,
    aws_storage.lustre_efa_clients,
    aws_storage.lustre_zone,
    aws_storage.s3,
    aws_storage.existing,
    aws_storage.existing_twice,
    aws_storage.scratch,
    aws_software.fetched,
    aws_budget.hourly,
    aws_budget.monthly,
    aws_budget.unknown_price,
    aws_budget.notify,
    aws_budget.unread,
    aws_tags.keys,
    aws_tags.values,
    aws_tags.count,
)
HOST_RULES: tuple[Callable[[ClusterSpec, EngineFacts], Iterator[Issue]], ...] = (
    host.cpus,
    host.memory,
    host.total_memory,
)


def validate(spec: ClusterSpec, engine: EngineFacts | None = None, root: Path | None = None) -> list[Issue]:
    """Every issue of a spec; `engine` adds the rules about this machine, `root` those about files of the repository."""
    of_target = AWS_RULES if spec.target == "aws" else (aws_only.elsewhere,)
    found = [issue for rule in (*SPEC_RULES, *of_target) for issue in rule(spec)]
    if engine and spec.target == "local":
        found += [issue for rule in HOST_RULES for issue in rule(spec, engine)]
    if root:
        found += software.lock_exists(spec, root)
        found += aws_software.lock(spec, root)
    return found
