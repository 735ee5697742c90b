"""A cluster on AWS as one Pulumi component: creates its components in the order in which they need each other."""

from __future__ import annotations

import os
from collections.abc import Mapping

import pulumi

from cluster import names
from cluster.catalog.instances import InstanceType
from cluster.inventory import Role
from cluster.spec import ClusterSpec, NodeGroup
from infra.home import Home
from infra.plan import BuildPlan
from infra.targets.aws.build.budget import Budget
from infra.targets.aws.build.bundle import NodeFiles, create_node_files
from infra.targets.aws.build.component import Site, create_provider
from infra.targets.aws.build.fleet import TemplateArgs, create_fleet
from infra.targets.aws.build.foundation import Foundation, create_foundation
from infra.targets.aws.build.inventory import build_inventory, compute_names
from infra.targets.aws.build.permanent_machines import Controller, Login, PermanentMachines, StartArgs
from infra.targets.aws.build.resolved import Resolved, ResolvedArgs
from infra.targets.aws.build.roles import Roles, resolve_scope
from infra.targets.aws.build.secrets import HostKeys
from infra.targets.aws.build.state_snapshots import StateSnapshots
from infra.targets.aws.fallback_images import read_fallbacks
from infra.targets.aws.plan import capacity, images, machines, network, security
from infra.targets.aws.plan.hooks import objects_by_role
from infra.targets.aws.spec import region_of
from infra.targets.target import Context

Images = Mapping[str, pulumi.Input[str]]
"""Image ids by node group."""


class AwsCluster(pulumi.ComponentResource):
    """Everything but the compute nodes, which are launched by name from what is created here."""

    inventory: pulumi.Output[str]
    """An Inventory as JSON, with the instance ids of the permanent machines."""
    addresses: pulumi.Output[dict[str, str]]
    """Addresses of the permanent machines by name."""
    instances: dict[Role, pulumi.Output[str]]
    """Instance ids of the permanent machines by name."""
    fleet: pulumi.Output[str]
    """The Fleet as JSON."""
    images: Images
    node_files: NodeFiles
    node_prerequisites: tuple[pulumi.Resource, ...]
    """What a machine fetches first; it has to exist before any machine starts."""
    compute_prerequisites: tuple[pulumi.Resource, ...]
    """What launching and removing compute nodes needs: they are created after it and removed before it."""

    def __init__(self, plan: BuildPlan, context: Context) -> None:
        provider = create_provider(context.spec, context.stack, context.guard)
        super().__init__("muster:aws:Cluster", plan.cluster, None, pulumi.ResourceOptions(providers=[provider]))
        after_guard = pulumi.ResourceOptions(parent=self, depends_on=[context.guard])
        resolved = Resolved("resolved", _lookups(context.spec, context.stack), after_guard)
        host_keys = HostKeys("host-keys", cluster=plan.cluster, names=_list_host_names(plan), opts=after_guard)
        site = Site(context.spec, context.stack, resolved, self)

        foundation = create_foundation(site, context.secrets, host_keys, context.webhook)
        permanent = _reserve_addresses(site, foundation)
        images_by_group = {name: _group_image(site, group) for name, group in site.spec.groups.items()}
        roles = _create_roles(site, foundation, images_by_group)
        node_files = create_node_files(
            site,
            foundation,
            state_volume=permanent.controller.volume_id,
            # Interface ids stand for machine ids: the machine behind an address may change, the bundle should not.
            inventory=_render_inventory(plan, permanent, host_keys, permanent.interface_ids),
            secrets=context.secrets,
        )
        template_args = TemplateArgs(
            images=images_by_group,
            profile=roles.profiles["compute"],
            key_arn=foundation.key_arn,
            user_data=node_files.encoded_user_data("compute"),
            security_group=foundation.groups.ids[security.COMPUTE],
        )
        bundle_digest = node_files.bundle.apply(lambda packed: packed.digest)
        fleet = create_fleet(site, foundation, template_args, bundle_digest)
        prerequisites = (
            # With its routes and endpoints: a machine that cannot reach its package mirror or AWS fails its set-up.
            foundation.network,
            node_files.upload,
            *foundation.parameters.all,
            foundation.host_keys,
            *foundation.file_systems.prerequisites,
            fleet.upload,
        )
        instances = _start_machines(site, foundation, permanent, roles, node_files=node_files, after=prerequisites)

        self.cluster, self.stack, self.region = plan.cluster, context.stack, region_of(context.spec)
        self.domain = foundation.zone.domain
        self.inventory = _render_inventory(plan, permanent, host_keys, instances)
        self.addresses, self.instances = permanent.addresses, instances
        self.fleet, self.images, self.node_files = fleet.text, images_by_group, node_files
        self.node_prerequisites = prerequisites
        self.compute_prerequisites = (
            *prerequisites,
            foundation.groups,
            roles,
            foundation.zone,
            *permanent.by_role.values(),
        )
        self.register_outputs({"inventory": self.inventory, "fleet": self.fleet})


def _lookups(spec: ClusterSpec, stack: str) -> ResolvedArgs:
    """Return what has to be looked up in AWS because the spec leaves it open."""
    instance_types = [machines.controller(spec), *([machines.login(spec)] if spec.login.enabled else [])]
    instance_types += [kind for group in spec.groups.values() for kind in machines.compute_types(group)]
    choose_zone = not spec.network.vpc_id and network.zones(spec) == (network.AUTO,)
    return ResolvedArgs(
        region=region_of(spec),
        parameters=_image_sources(spec, stack),
        instance_types=sorted({instance_type.name for instance_type in instance_types}) if choose_zone else [],
        vpc_id=spec.network.vpc_id,
        subnet_ids=list(spec.network.subnet_ids),
        filesystem_ids=sorted(
            storage.id for storage in spec.storage.values() if storage.kind == "existing" and storage.id
        ),
    )


def _image_sources(spec: ClusterSpec, stack: str) -> dict[str, str]:
    """Return where the images come from that the spec does not name, by kind."""
    sources, fallbacks = images.parameters(spec), read_fallbacks(Home.of(os.environ).stack(stack))
    return {kind: fallbacks.get(kind, path) for kind, path in sources.items()}


def _reserve_addresses(site: Site, foundation: Foundation) -> PermanentMachines:
    """Create addresses and DNS records before any machine starts, because every machine gets all of them."""
    network, groups = foundation.network, foundation.groups
    permanent = PermanentMachines(
        controller=Controller(site, network, groups, foundation.key_arn),
        login=Login(site, network, groups) if site.spec.login.enabled else None,
    )
    for role, machine in permanent.by_role.items():
        foundation.zone.add_record(role, machine.address)
    return permanent


def _create_roles(site: Site, foundation: Foundation, images: Images) -> Roles:
    """Create the roles of the nodes, the budget that can revoke the permission to launch, and snapshots."""
    spec = site.spec
    groups = spec.groups.values()
    scope = resolve_scope(
        site,
        bucket_arn=foundation.bucket.arn,
        key_arn=foundation.key_arn,
        zone_id=foundation.zone.zone_id,
        vpc_id="" if spec.network.vpc_id else foundation.network.vpc_id,
        subnet_ids=list(foundation.network.subnets.values()),
        images=list(images.values()),
        instance_types=sorted({kind.name for group in groups for kind in machines.compute_types(group)}),
        security_groups=[foundation.groups.ids[security.COMPUTE]],
        reservations=sorted({group.capacity.reservation for group in groups if group.capacity.reservation}),
        spot=any("spot" in capacity.purchases(group) for group in groups),
        budget=site.name() if spec.budget.usd_per_month else None,
        alerts=bool(spec.alerts.webhook),
        jobs=bool(site.aws.policies.jobs),
        hooks=objects_by_role(site.aws),
    )
    roles = Roles(site, scope)
    if spec.budget.usd_per_month:
        Budget(site, scope, roles)
    if site.aws.state_backup_days:
        StateSnapshots(site, scope)
    return roles


def _start_machines(  # noqa: PLR0913
    site: Site,
    foundation: Foundation,
    permanent: PermanentMachines,
    roles: Roles,
    *,
    node_files: NodeFiles,
    after: tuple[pulumi.Resource, ...],
) -> dict[Role, pulumi.Output[str]]:
    """Start the permanent machines and return their instance ids."""
    instance_types = {"controller": machines.controller(site.spec), "login": machines.login(site.spec)}
    return {
        role: machine.start(
            StartArgs(
                instance_type=instance_types[role].name,
                image=_image(site, instance_types[role]),
                profile=roles.profiles[role],
                key_arn=foundation.key_arn,
                user_data=node_files.encoded_user_data(role),
                after=(*after, roles.policies[role]),
            )
        )
        for role, machine in permanent.by_role.items()
    }


def _render_inventory(
    plan: BuildPlan, permanent: PermanentMachines, host_keys: HostKeys, ids: Mapping[Role, pulumi.Output[str]]
) -> pulumi.Output[str]:
    """Return the Inventory as JSON; `ids` are the machine ids of the permanent machines."""
    keys = host_keys.public
    fields = {
        role: {"address": machine.address, "host_key": keys[role], "machine_id": ids[role]}
        for role, machine in permanent.by_role.items()
    }
    return pulumi.Output.all(machines=fields, keys=keys).apply(
        lambda values: build_inventory(plan, values["machines"], values["keys"]).model_dump_json()
    )


def _list_host_names(plan: BuildPlan) -> list[str]:
    return [names.CONTROLLER, names.LOGIN, *compute_names(plan)]


def _group_image(site: Site, group: NodeGroup) -> pulumi.Input[str]:
    return group.image or _image(site, machines.compute(group))


def _image(site: Site, instance_type: InstanceType) -> pulumi.Input[str]:
    return images.given(site.spec, instance_type) or site.resolved.images[images.kind(instance_type)]
