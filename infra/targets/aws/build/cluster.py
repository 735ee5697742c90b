"""A cluster on AWS as one Pulumi component: its parts in the order in which they need each other."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

import pulumi

from bootstrap import bundle
from cluster.catalog.instances import InstanceType
from cluster.inventory import Role
from infra.plan import BuildPlan
from infra.targets.aws.build.bucket import Bucket
from infra.targets.aws.build.budget import Budget
from infra.targets.aws.build.bundle import Packed, pack
from infra.targets.aws.build.controller import Controller
from infra.targets.aws.build.file_systems import FileSystems, filesystems
from infra.targets.aws.build.fixed_machine import FixedMachine, Start
from infra.targets.aws.build.host_keys import HostKeys
from infra.targets.aws.build.inventory import inventory
from infra.targets.aws.build.key import Key
from infra.targets.aws.build.launch_templates import LaunchTemplates, TemplateArgs
from infra.targets.aws.build.login import Login
from infra.targets.aws.build.name_zone import NameZone
from infra.targets.aws.build.network import Network
from infra.targets.aws.build.parameters import Parameters
from infra.targets.aws.build.part import Site
from infra.targets.aws.build.placement import Placement
from infra.targets.aws.build.provider import provider
from infra.targets.aws.build.resolved import Resolved, ResolvedArgs
from infra.targets.aws.build.roles import Roles, scope
from infra.targets.aws.build.security_groups import SecurityGroups
from infra.targets.aws.launcher.fleet import Fleet
from infra.targets.aws.node import parameters
from infra.targets.aws.node.cloud import describe_cloud
from infra.targets.aws.plan import capacity, images, machines, network, security
from infra.targets.aws.plan.iam import NODE_ROLES
from infra.targets.aws.plan.user_data import user_data
from infra.targets.aws.spec import aws_section, region_of
from infra.targets.target import Context


class AwsCluster(pulumi.ComponentResource):
    """Everything but the compute nodes, which are launched by name from what is made here."""

    inventory: pulumi.Output[str]
    fleet: pulumi.Output[str]
    addresses: pulumi.Output[dict[str, str]]
    bundle: pulumi.Output[Packed]
    instances: dict[Role, pulumi.Output[str]]
    """Ids of the machines that stay, by name."""
    scripts: dict[Role, pulumi.Output[str]]
    """User data of each role."""
    images: dict[str, pulumi.Input[str]]
    """By group."""
    shipped: list[pulumi.Resource]
    """What a node fetches before anything else."""
    ground: list[pulumi.Resource]
    """What has to outlive every node: without its way out, its rights or its controller one cannot even end well."""

    def __init__(self, plan: BuildPlan, context: Context) -> None:
        section = aws_section(context.spec)
        made_with = provider(context.spec, context.stack, context.guard)
        super().__init__("muster:aws:Cluster", plan.cluster, None, pulumi.ResourceOptions(providers=[made_with]))
        self._plan, self._context = plan, context
        self.cluster, self.region = plan.cluster, section.region if section else ""
        after_guard = pulumi.ResourceOptions(parent=self, depends_on=[context.guard])
        resolved = Resolved("resolved", _asked(context), after_guard)
        self._host_keys = HostKeys("host-keys", cluster=plan.cluster, roles=NODE_ROLES, opts=after_guard)
        self._site = Site(context.spec, context.stack, resolved, self)
        self._make_ground()
        self._make_addresses()
        self._make_roles()
        self._ship()
        self._make_fleet()
        self._start()
        self.register_outputs({"inventory": self.inventory, "fleet": self.fleet})

    def _make_ground(self) -> None:
        """What needs no machine: network, key, secrets, bucket, storage, names."""
        site = self._site
        self._network = Network(site)
        self._groups = SecurityGroups(site, self._network)
        self._key = Key(site)
        if security.ENDPOINTS in self._groups.ids:
            self._network.add_endpoints(self._groups.ids[security.ENDPOINTS])
        self._network.add_flow_log(self._key.arn)
        self._secrets = Parameters(site, self._key.arn, self._context.secrets, self._host_keys)
        self._bucket = Bucket(site, self._key.arn)
        self._storage = FileSystems(site, self._network, self._groups, self._key.arn)
        self._zone = NameZone(site, self._network.vpc_id)
        self.domain = self._zone.domain

    def _make_addresses(self) -> None:
        """Before the machines: each of them is told all addresses."""
        self._controller = Controller(self._site, self._network, self._groups, self._key.arn)
        self._fixed: dict[Role, FixedMachine] = {"controller": self._controller}
        if self._context.spec.login.enabled:
            self._fixed["login"] = Login(self._site, self._network, self._groups)
        for name, machine in self._fixed.items():
            self._zone.add(name, machine.address)
        self.addresses = pulumi.Output.all(**{name: one.address for name, one in self._fixed.items()})

    def _make_roles(self) -> None:
        spec = self._context.spec
        self.images = {name: self._image(machines.compute(group)) for name, group in spec.groups.items()}
        named = scope(
            self._site,
            bucket_arn=self._bucket.arn,
            key_arn=self._key.arn,
            zone_id=self._zone.zone_id,
            subnet_ids=list(self._network.subnets.values()),
            images=list(self.images.values()),
            reservations=sorted({one for g in spec.groups.values() if (one := g.capacity.reservation)}),
            spot=any("spot" in capacity.purchases(group) for group in spec.groups.values()),
            budget=self._site.name() if spec.budget.usd_per_month else None,
        )
        self._roles = Roles(self._site, named)
        if spec.budget.usd_per_month:
            Budget(self._site, named, self._roles)

    def _ship(self) -> None:
        """The bundle says which address is whose; which machine has it may change, so interfaces stand for machines."""
        interfaces = {name: one.interface_id for name, one in self._fixed.items()}
        known = {
            "bucket": self._bucket.name,
            "volume": self._controller.volume_id,
            "mounted": self._storage.mounted,
            "inventory": self._inventory(interfaces),
            "ssh_public_key": self._context.secrets.ssh_public_key,
        }
        self.bundle = pulumi.Output.all(**known).apply(self._pack)
        self.scripts = {role: self._script(role) for role in NODE_ROLES}
        self.shipped = [self._bucket.put_bundle(self.bundle), *self._secrets.all, *self._storage.waiting]

    def _pack(self, known: Mapping[str, Any]) -> Packed:
        spec = self._context.spec
        cloud = describe_cloud(
            region=self._site.aws.region,
            bucket=known["bucket"],
            domain=self._zone.domain,
            state_volume=known["volume"],
            filesystems=filesystems(known["mounted"]),
            image_fix=images.image_fix(self._site.aws),
        )
        files = {
            bundle.SPEC: spec.model_dump_json(),
            bundle.INVENTORY: known["inventory"],
            bundle.CLOUD: cloud.model_dump_json(),
            bundle.PUBLIC_KEY: known["ssh_public_key"],
        }
        return pack(self._context.stack, machines.controller(spec).architecture, files)

    def _make_fleet(self) -> None:
        spec = self._context.spec
        args = TemplateArgs(
            images=self.images,
            profile=self._roles.profiles["compute"],
            key_arn=self._key.arn,
            user_data=self.scripts["compute"].apply(_encoded),
            security_group=self._groups.ids[security.COMPUTE],
        )
        templates = LaunchTemplates(self._site, args, self._network, Placement(self._site))
        known = {"groups": list(templates.groups.values()), "zone": self._zone.zone_id, "bundle": self.bundle}

        def written(known: Mapping[str, Any]) -> str:
            return Fleet(
                cluster=spec.name,
                stack=self._context.stack,
                region=self._site.aws.region,
                hosted_zone_id=known["zone"],
                domain=self._zone.domain,
                bundle=known["bundle"].digest,
                tags=spec.tags,
                groups=tuple(known["groups"]),
                budget_name=self._site.name() if spec.budget.usd_per_month else None,
            ).model_dump_json()

        self.fleet = pulumi.Output.all(**known).apply(written)
        self.shipped.append(self._bucket.put_text(parameters.FLEET, self.fleet))

    def _start(self) -> None:
        spec = self._context.spec
        types = {"controller": machines.controller(spec), "login": machines.login(spec)}
        for machine in self._fixed.values():
            role = machine.role
            start = Start(
                instance_type=types[role].name,
                image=self._image(types[role]),
                profile=self._roles.profiles[role],
                key_arn=self._key.arn,
                user_data=self.scripts[role].apply(_encoded),
                after=(*self.shipped, self._roles.policies[role]),
            )
            machine.start(start)
        self.ground = [self._network, self._groups, self._roles, self._zone, *self._fixed.values()]
        self.instances = {name: one.instance_id for name, one in self._fixed.items()}
        self.inventory = self._inventory(self.instances)

    def _inventory(self, ids: Mapping[Role, pulumi.Output[str]]) -> pulumi.Output[str]:
        """As JSON; `ids` are those of the machines that stay."""
        keys = self._host_keys.public
        known = {
            name: {"address": one.address, "host_key": keys[name], "machine_id": ids[name]}
            for name, one in self._fixed.items()
        }
        return pulumi.Output.all(machines=known, compute=keys["compute"]).apply(
            lambda found: inventory(self._plan, found["machines"], found["compute"]).model_dump_json()
        )

    def _image(self, machine: InstanceType) -> pulumi.Input[str]:
        given = images.given(self._context.spec, machine)
        return given or self._site.resolved.images[images.kind(machine)]

    def _script(self, role: Role) -> pulumi.Output[str]:
        site = self._site

        def text(known: Mapping[str, Any]) -> str:
            packed: Packed = known["bundle"]
            return user_data(
                bucket=known["bucket"],
                digest=packed.digest,
                sha256=packed.sha256,
                region=site.aws.region,
                role=role,
                cluster=site.cluster,
            )

        return pulumi.Output.all(bundle=self.bundle, bucket=self._bucket.name).apply(text)


def _encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def _asked(context: Context) -> ResolvedArgs:
    """What the spec leaves to AWS."""
    spec = context.spec
    types = [machines.controller(spec), *([machines.login(spec)] if spec.login.enabled else [])]
    types += [machines.compute(group) for group in spec.groups.values()]
    chosen = not spec.network.vpc_id and network.zones(spec) == (network.AUTO,)
    return ResolvedArgs(
        region=region_of(spec),
        parameters=images.parameters(spec),
        instance_types=sorted({one.name for one in types}) if chosen else [],
        vpc_id=spec.network.vpc_id,
        subnet_ids=list(spec.network.subnet_ids),
        filesystem_ids=sorted(one.id for one in spec.storage.values() if one.kind == "existing" and one.id),
    )
