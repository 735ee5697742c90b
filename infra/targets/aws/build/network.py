"""The network of a cluster: VPC, subnets, NAT gateway, endpoints of AWS services, flow log, private DNS zone."""

from __future__ import annotations

import json

import pulumi
import pulumi_aws as aws

from infra.targets.aws import names
from infra.targets.aws.build.component import AwsComponent, Site
from infra.targets.aws.plan import iam, network
from infra.targets.aws.plan.network import AUTO, Subnet

_WORLD = "0.0.0.0/0"
_FLOW_LOG_DAYS = 30
_RECORD_TTL_S = 60


class Network(AwsComponent):
    """A VPC with private subnets for nodes, or an existing VPC, in which none of this is created."""

    vpc_id: pulumi.Output[str]
    cidr: pulumi.Output[str]
    subnets: dict[str, pulumi.Output[str]]
    """Ids of the private subnets by the label of their place."""
    zones: dict[str, pulumi.Output[str]]
    """Names of availability zones by the label of their place."""

    def __init__(self, site: Site) -> None:
        super().__init__("Network", site)
        if site.spec.network.vpc_id:
            self._use_existing(site.spec.network.vpc_id)
        else:
            self._create()
        self.register_outputs({"vpc_id": self.vpc_id})

    @property
    def first_place(self) -> str:
        """The label of the place that holds controller, login and storage."""
        return next(iter(self.subnets))

    def _use_existing(self, vpc_id: str) -> None:
        self.vpc_id = pulumi.Output.from_input(vpc_id)
        self.cidr = self.site.resolved.vpc_cidr
        subnet_zones = self.site.resolved.subnet_zones
        places = network.places(self.site.spec)
        self.subnets = {place.label: pulumi.Output.from_input(place.subnet_id or "") for place in places}
        self.zones = {place.label: subnet_zones[place.label] for place in places}

    def _create(self) -> None:
        spec = self.site.spec
        vpc = aws.ec2.Vpc(
            "vpc",
            cidr_block=network.cidr(spec),
            enable_dns_support=True,
            enable_dns_hostnames=True,
            tags=self.name_tag(),
            opts=self.child_options(),
        )
        self.vpc_id, self.cidr = vpc.id, vpc.cidr_block
        aws.ec2.DefaultSecurityGroup(
            "unused", vpc_id=self.vpc_id, tags=self.name_tag("unused"), opts=self.child_options()
        )
        planned = network.subnets(spec)
        private = {subnet: self._create_subnet(subnet) for subnet in planned if not subnet.public}
        public = next((self._create_subnet(subnet) for subnet in planned if subnet.public), None)
        self.subnets = {subnet.zone: resource.id for subnet, resource in private.items()}
        self.zones = {subnet.zone: resource.availability_zone for subnet, resource in private.items()}
        self._create_private_routes(private, public)

    def _create_subnet(self, subnet: Subnet) -> aws.ec2.Subnet:
        return aws.ec2.Subnet(
            subnet.name,
            vpc_id=self.vpc_id,
            cidr_block=subnet.cidr,
            availability_zone=self.site.resolved.zone if subnet.zone == AUTO else subnet.zone,
            map_public_ip_on_launch=False,
            tags=self.name_tag(subnet.name),
            opts=self.child_options(),
        )

    def _create_private_routes(self, private: dict[Subnet, aws.ec2.Subnet], public: aws.ec2.Subnet | None) -> None:
        table = aws.ec2.RouteTable(
            "private", vpc_id=self.vpc_id, tags=self.name_tag("private"), opts=self.child_options()
        )
        for subnet, resource in private.items():
            aws.ec2.RouteTableAssociation(
                subnet.name, subnet_id=resource.id, route_table_id=table.id, opts=self.child_options()
            )
        if public is not None:
            aws.ec2.Route(
                "private-out",
                route_table_id=table.id,
                destination_cidr_block=_WORLD,
                nat_gateway_id=self._create_nat_gateway(public).id,
                opts=self.child_options(),
            )
        # Traffic to S3 (bundles, data sets, checkpoints) bypasses the NAT gateway, which charges by volume.
        aws.ec2.VpcEndpoint(
            "s3",
            vpc_id=self.vpc_id,
            service_name=f"com.amazonaws.{self.site.aws.region}.s3",
            vpc_endpoint_type="Gateway",
            route_table_ids=[table.id],
            tags=self.name_tag("s3"),
            opts=self.child_options(),
        )

    def _create_nat_gateway(self, public: aws.ec2.Subnet) -> aws.ec2.NatGateway:
        gateway = aws.ec2.InternetGateway(
            "out", vpc_id=self.vpc_id, tags=self.name_tag("out"), opts=self.child_options()
        )
        table = aws.ec2.RouteTable(
            "public", vpc_id=self.vpc_id, tags=self.name_tag("public"), opts=self.child_options()
        )
        route = aws.ec2.Route(
            "public-out",
            route_table_id=table.id,
            destination_cidr_block=_WORLD,
            gateway_id=gateway.id,
            opts=self.child_options(),
        )
        association = aws.ec2.RouteTableAssociation(
            "public", subnet_id=public.id, route_table_id=table.id, opts=self.child_options()
        )
        address = aws.ec2.Eip("nat", domain="vpc", tags=self.name_tag("nat"), opts=self.child_options(gateway))
        return aws.ec2.NatGateway(
            "nat",
            allocation_id=address.id,
            subnet_id=public.id,
            tags=self.name_tag("nat"),
            opts=self.child_options(route, association),
        )

    def add_endpoints(self, security_group: pulumi.Input[str]) -> None:
        """Create the interface endpoints; separate, because they need a security group, which needs the VPC."""
        for service in network.endpoints(self.site.spec):
            aws.ec2.VpcEndpoint(
                service,
                vpc_id=self.vpc_id,
                service_name=f"com.amazonaws.{self.site.aws.region}.{service}",
                vpc_endpoint_type="Interface",
                private_dns_enabled=True,
                subnet_ids=list(self.subnets.values()),
                security_group_ids=[security_group],
                tags=self.name_tag(service),
                opts=self.child_options(),
            )

    def add_flow_log(self, key_arn: pulumi.Input[str]) -> None:
        """Log accepted and refused connections; an existing VPC is left as it is."""
        if self.site.spec.network.vpc_id or not self.site.spec.network.flow_logs:
            return
        group = aws.cloudwatch.LogGroup(
            "flow-logs",
            name=f"/{self.site.name()}/flow-logs",
            retention_in_days=_FLOW_LOG_DAYS,
            kms_key_id=key_arn,
            opts=self.child_options(),
        )
        trust = self.site.resolved.account.apply(lambda account: json.dumps(iam.trust("flow-logs", account)))
        role = aws.iam.Role(
            "flow-logs",
            name=self.site.name("flow-logs"),
            assume_role_policy=trust,
            permissions_boundary=self.site.aws.permissions_boundary,
            opts=self.child_options(),
        )
        policy = group.arn.apply(lambda arn: json.dumps(iam.document(iam.flow_logs(arn))))
        role_policy = aws.iam.RolePolicy(
            "flow-logs", name="flow-logs", role=role.name, policy=policy, opts=self.child_options()
        )
        aws.ec2.FlowLog(
            "flow-logs",
            vpc_id=self.vpc_id,
            traffic_type="ALL",
            log_destination_type="cloud-watch-logs",
            log_destination=group.arn,
            iam_role_arn=role.arn,
            max_aggregation_interval=600,
            tags=self.name_tag(),
            opts=self.child_options(role_policy),
        )


class NameZone(AwsComponent):
    """The private DNS zone of a cluster; the launcher writes the records of compute nodes."""

    domain: str
    zone_id: pulumi.Output[str]

    def __init__(self, site: Site, vpc_id: pulumi.Input[str]) -> None:
        super().__init__("NameZone", site)
        self.domain = names.domain(site.cluster)
        # Records of compute nodes are not in the state and would block the zone's deletion without force_destroy.
        zone = aws.route53.Zone(
            "zone",
            name=self.domain,
            comment=names.zone_comment(site.cluster),
            vpcs=[{"vpc_id": vpc_id}],
            force_destroy=True,
            opts=self.child_options(),
        )
        self.zone_id = zone.zone_id
        self.register_outputs({"zone_id": self.zone_id})

    def add_record(self, node: str, address: pulumi.Input[str]) -> None:
        """Add the name of a permanent machine."""
        aws.route53.Record(
            node,
            zone_id=self.zone_id,
            name=f"{node}.{self.domain}",
            type="A",
            ttl=_RECORD_TTL_S,
            records=[address],
            opts=self.child_options(),
        )
