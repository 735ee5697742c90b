"""Rules about the VPC: a range of its own with room for every address, or subnets of one that exists."""

from __future__ import annotations

import re
from collections.abc import Iterator
from ipaddress import IPv4Network

from cluster.catalog.lustre import size_gb
from cluster.spec import ClusterSpec
from cluster.spec.issue import Issue, error, warning
from infra.targets.aws.plan import images
from infra.targets.aws.plan.interfaces import NoEfa, addresses
from infra.targets.aws.plan.network import AUTO, NoRoom, Subnet, cidr, endpoints, subnets
from infra.targets.aws.spec import aws_section
from infra.targets.aws.validate.types import groups, known, most

VPC = re.compile(r"vpc-([0-9a-f]{8}|[0-9a-f]{17})")
SUBNET = re.compile(r"subnet-([0-9a-f]{8}|[0-9a-f]{17})")
# docs.aws.amazon.com/vpc/latest/userguide/vpc-cidr-blocks.html, subnet-sizing.html
LARGEST, SMALLEST = 16, 28
AWS_KEEPS = 5
# A Lustre filesystem has one address for each of its servers.
LUSTRE_SERVER_GB = 2400


def existing(spec: ClusterSpec) -> Iterator[Issue]:
    network = spec.network
    if network.vpc_id and not network.subnet_ids:
        message = f"required beside vpc_id ({network.vpc_id}), but missing; expected private subnets, one per zone"
        yield error("no_subnets", "network.subnet_ids", message, "add `subnet_ids: [subnet-...]`")
    if network.subnet_ids and not network.vpc_id:
        message = (
            f"required beside subnet_ids ({network.subnet_ids[0]}, ...), but missing; expected the id of their VPC"
        )
        yield error("no_vpc", "network.vpc_id", message, "add `vpc_id: vpc-...`, or remove subnet_ids")
    if network.vpc_id and network.cidr:
        message = f"'{network.cidr}' has no effect: VPC {network.vpc_id} has its ranges already"
        yield error("cidr_of_vpc", "network.cidr", message, "remove it, or remove vpc_id")


def formats(spec: ClusterSpec) -> Iterator[Issue]:
    vpc = spec.network.vpc_id
    if vpc is not None and not VPC.fullmatch(vpc):
        message = f"'{vpc}' is no VPC; allowed: vpc- and 8 or 17 hexadecimal digits"
        yield error("vpc_format", "network.vpc_id", message, "write for example `vpc_id: vpc-0123456789abcdef0`")
    for index, subnet in enumerate(spec.network.subnet_ids):
        where = f"network.subnet_ids[{index}]"
        if not SUBNET.fullmatch(subnet):
            message = f"'{subnet}' is no subnet; allowed: subnet- and 8 or 17 hexadecimal digits"
            yield error("subnet_format", where, message, "write for example `subnet-0123456789abcdef0`")
        elif subnet in spec.network.subnet_ids[:index]:
            yield error("subnet_twice", where, f"'{subnet}' is named twice", "remove one of the two")


def zones_of_subnets(spec: ClusterSpec) -> Iterator[Issue]:
    section = aws_section(spec)
    if section and spec.network.subnet_ids and section.zones:
        given, named = len(spec.network.subnet_ids), len(section.zones)
        if given != named:
            message = f"subnets: {given}, zones: {named}; allowed: one zone for each, in the same order, or none"
            yield error("zones_and_subnets", "aws.zones", message, "name the zone of each subnet, or remove zones")


def range_size(spec: ClusterSpec) -> Iterator[Issue]:
    network = _range(spec)
    if network and not LARGEST <= network.prefixlen <= SMALLEST:
        message = f"'{network}' is a /{network.prefixlen}; AWS allows a VPC from /{LARGEST} to /{SMALLEST}"
        yield error("vpc_size", "network.cidr", message, "write for example `cidr: 10.0.0.0/16`")


def room(spec: ClusterSpec) -> Iterator[Issue]:
    """Every interface with an address takes one out of its subnet: what counts is the layout, not the node."""
    if aws_section(spec) is None or _range(spec) is None:
        return
    try:
        private = [subnet for subnet in subnets(spec) if not subnet.public]
    except NoRoom as bad:
        text = str(bad).removeprefix("network.cidr: ")
        message, _, fix = text.partition(". Fix: ")
        yield error("cidr_small", "network.cidr", message, fix)
        return
    for number, subnet in enumerate(private):
        needed = addresses_needed(spec, subnet.zone, first=number == 0)
        free = IPv4Network(subnet.cidr).num_addresses - AWS_KEEPS
        if needed > free:
            message = f"{_called(subnet)} has {free} addresses, the cluster needs {needed} there"
            yield error("subnet_small", "network.cidr", message, f"write for example `{_larger(spec, needed, free)}`")


def addresses_needed(spec: ClusterSpec, zone: str, *, first: bool) -> int:
    """In the private subnet of a zone; the first one also has the controller, login node and storage."""
    fixed = 1 + spec.login.enabled + _lustre_servers(spec) if first else 0
    nodes = 0
    for group, found in groups(spec).values():
        if zone not in (group.capacity.zones or (zone,)):
            continue
        try:
            nodes += most(group) * addresses(found, group.fabric, ip_bandwidth=group.ip_bandwidth)
        except NoEfa:
            nodes += most(group)
    mounts = sum(storage.kind == "efs" for storage in spec.storage.values())
    return fixed + nodes + mounts + len(endpoints(spec))


def images_offline(spec: ClusterSpec) -> Iterator[Issue]:
    """AWS's images have neither Slurm nor the Python that set-up needs; without a way out nothing brings them."""
    if aws_section(spec) is None or spec.network.egress or spec.network.vpc_id:
        return
    starting: dict[str, str] = {}
    for where, found in known(spec).items():
        if images.given(spec, found) is None:
            starting.setdefault(images.field(found), where)
    for field, where in starting.items():
        message = (
            f"required with `network.egress: false`, but missing: {where} can install nothing that AWS's image lacks"
        )
        fix = f"name an image that has the packages of docs/aws.md, `{field}: ami-...`, or write `egress: true`"
        yield error("images_offline", f"aws.{field}", message, fix)


def names_offline(spec: ClusterSpec) -> Iterator[Issue]:
    """The controller writes the names of nodes that it launches to Route 53, for which no endpoint is made here."""
    if spec.network.egress or spec.network.vpc_id:
        return
    fix = "write `egress: true`, or name a VPC of yours (vpc_id) from which Route 53 can be reached"
    for name, (group, _) in groups(spec).items():
        if group.count is None:
            message = f"group {name} comes and goes, but without a way out the controller cannot name its nodes"
            yield error("names_offline", "network.egress", message, fix)
        else:
            message = f"a lost node of group {name} comes back with `make up` only: the controller cannot name it"
            yield warning("replaced_by_up", "network.egress", message, fix)


def login_port(spec: ClusterSpec) -> Iterator[Issue]:
    if spec.login.ssh_port is not None:
        message = (
            f"{spec.login.ssh_port} cannot be published: nodes on AWS are reached through SSM Session Manager only"
        )
        yield error("port_on_aws", "login.ssh_port", message, "remove it; `make ssh` needs no port")


def _called(subnet: Subnet) -> str:
    return "the private subnet" if subnet.zone == AUTO else f"the subnet of {subnet.zone}"


def _lustre_servers(spec: ClusterSpec) -> int:
    sizes = [size_gb(one) for one in spec.storage.values() if one.kind == "fsx-lustre"]
    return sum(1 + -(-gb // LUSTRE_SERVER_GB) for gb in sizes)


def _larger(spec: ClusterSpec, needed: int, free: int) -> str:
    """The range that is as many times larger as the subnet would have to be."""
    network = IPv4Network(cidr(spec))
    steps = (-(-(needed + AWS_KEEPS) // (free + AWS_KEEPS)) - 1).bit_length()
    prefix = max(network.prefixlen - steps, LARGEST)
    return f"cidr: {network.supernet(new_prefix=prefix)}"


def _range(spec: ClusterSpec) -> IPv4Network | None:
    """The range of a VPC of its own, where it can be read."""
    if spec.network.vpc_id:
        return None
    try:
        return IPv4Network(cidr(spec))
    except ValueError:
        return None
