"""The VPC: private subnets for nodes, a public one for the NAT gateway, private ways to AWS services, a flow log."""

from __future__ import annotations

import json

import pulumi
import pulumi_aws as aws

from infra.targets.aws.build.part import Part, Site
from infra.targets.aws.plan import iam, network
from infra.targets.aws.plan.network import AUTO, Subnet

_WORLD = "0.0.0.0/0"
_FLOW_LOG_DAYS = 30


class Network(Part):
    """An existing VPC is used as it is: nothing is made in it but what the cluster itself needs."""

    vpc_id: pulumi.Output[str]
    cidr: pulumi.Output[str]
    subnets: dict[str, pulumi.Output[str]]
    """Private ones, by the label of their place."""
    zones: dict[str, pulumi.Output[str]]
    """Names of zones, by the label of their place."""

    def __init__(self, site: Site) -> None:
        super().__init__("Network", site)
        if site.spec.network.vpc_id:
            self._use(site.spec.network.vpc_id)
        else:
            self._make()
        self.register_outputs({"vpc_id": self.vpc_id})

    @property
    def first(self) -> str:
        """Label of the place that has controller, login and storage."""
        return next(iter(self.subnets))

    def _use(self, vpc_id: str) -> None:
        self.vpc_id = pulumi.Output.from_input(vpc_id)
        self.cidr = self.site.resolved.vpc_cidr
        found = self.site.resolved.subnet_zones
        places = network.places(self.site.spec)
        self.subnets = {place.label: pulumi.Output.from_input(place.subnet_id or "") for place in places}
        self.zones = {place.label: found[place.label] for place in places}

    def _make(self) -> None:
        spec = self.site.spec
        self.vpc = aws.ec2.Vpc(
            "vpc",
            cidr_block=network.cidr(spec),
            enable_dns_support=True,
            enable_dns_hostnames=True,
            tags=self.named(),
            opts=self.child(),
        )
        self.vpc_id, self.cidr = self.vpc.id, self.vpc.cidr_block
        aws.ec2.DefaultSecurityGroup("unused", vpc_id=self.vpc_id, tags=self.named("unused"), opts=self.child())
        made = {subnet: self._subnet(subnet) for subnet in network.subnets(spec)}
        private = {subnet: one for subnet, one in made.items() if not subnet.public}
        self.subnets = {subnet.zone: one.id for subnet, one in private.items()}
        self.zones = {subnet.zone: one.availability_zone for subnet, one in private.items()}
        self._private_routes(private, next((one for subnet, one in made.items() if subnet.public), None))

    def _subnet(self, subnet: Subnet) -> aws.ec2.Subnet:
        return aws.ec2.Subnet(
            subnet.name,
            vpc_id=self.vpc_id,
            cidr_block=subnet.cidr,
            availability_zone=self.site.resolved.zone if subnet.zone == AUTO else subnet.zone,
            map_public_ip_on_launch=False,
            tags=self.named(subnet.name),
            opts=self.child(),
        )

    def _private_routes(self, private: dict[Subnet, aws.ec2.Subnet], public: aws.ec2.Subnet | None) -> None:
        table = aws.ec2.RouteTable("private", vpc_id=self.vpc_id, tags=self.named("private"), opts=self.child())
        for subnet, made in private.items():
            aws.ec2.RouteTableAssociation(subnet.name, subnet_id=made.id, route_table_id=table.id, opts=self.child())
        if public is not None:
            aws.ec2.Route(
                "private-out",
                route_table_id=table.id,
                destination_cidr_block=_WORLD,
                nat_gateway_id=self._nat(public).id,
                opts=self.child(),
            )
        # Bundles, data sets and checkpoints of S3 need not pay for the NAT gateway.
        aws.ec2.VpcEndpoint(
            "s3",
            vpc_id=self.vpc_id,
            service_name=f"com.amazonaws.{self.site.aws.region}.s3",
            vpc_endpoint_type="Gateway",
            route_table_ids=[table.id],
            tags=self.named("s3"),
            opts=self.child(),
        )

    def _nat(self, public: aws.ec2.Subnet) -> aws.ec2.NatGateway:
        gateway = aws.ec2.InternetGateway("out", vpc_id=self.vpc_id, tags=self.named("out"), opts=self.child())
        table = aws.ec2.RouteTable("public", vpc_id=self.vpc_id, tags=self.named("public"), opts=self.child())
        route = aws.ec2.Route(
            "public-out",
            route_table_id=table.id,
            destination_cidr_block=_WORLD,
            gateway_id=gateway.id,
            opts=self.child(),
        )
        joined = aws.ec2.RouteTableAssociation(
            "public", subnet_id=public.id, route_table_id=table.id, opts=self.child()
        )
        address = aws.ec2.Eip("nat", domain="vpc", tags=self.named("nat"), opts=self.child(gateway))
        return aws.ec2.NatGateway(
            "nat",
            allocation_id=address.id,
            subnet_id=public.id,
            tags=self.named("nat"),
            opts=self.child(route, joined),
        )

    def add_endpoints(self, security_group: pulumi.Input[str]) -> None:
        """Made after the security groups, which need the VPC."""
        for service in network.endpoints(self.site.spec):
            aws.ec2.VpcEndpoint(
                service,
                vpc_id=self.vpc_id,
                service_name=f"com.amazonaws.{self.site.aws.region}.{service}",
                vpc_endpoint_type="Interface",
                private_dns_enabled=True,
                subnet_ids=list(self.subnets.values()),
                security_group_ids=[security_group],
                tags=self.named(service),
                opts=self.child(),
            )

    def add_flow_log(self, key_arn: pulumi.Input[str]) -> None:
        """Who was let through and who was not. An existing VPC has a log of its own, or none is wanted."""
        if self.site.spec.network.vpc_id or not self.site.spec.network.flow_logs:
            return
        group = aws.cloudwatch.LogGroup(
            "flow-logs",
            name=f"/{self.site.name()}/flow-logs",
            retention_in_days=_FLOW_LOG_DAYS,
            kms_key_id=key_arn,
            opts=self.child(),
        )
        trust = self.site.resolved.account.apply(lambda account: json.dumps(iam.trust("flow-logs", account)))
        role = aws.iam.Role(
            "flow-logs",
            name=self.site.name("flow-logs"),
            assume_role_policy=trust,
            permissions_boundary=self.site.aws.permissions_boundary,
            opts=self.child(),
        )
        policy = group.arn.apply(lambda arn: json.dumps(iam.document(iam.flow_logs(arn))))
        written = aws.iam.RolePolicy("flow-logs", name="flow-logs", role=role.name, policy=policy, opts=self.child())
        aws.ec2.FlowLog(
            "flow-logs",
            vpc_id=self.vpc_id,
            traffic_type="ALL",
            log_destination_type="cloud-watch-logs",
            log_destination=group.arn,
            iam_role_arn=role.arn,
            max_aggregation_interval=600,
            tags=self.named(),
            opts=self.child(written),
        )
