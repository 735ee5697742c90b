"""Rules about the VPC: an own range with enough addresses, or subnets of an existing VPC; and what needs egress."""

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
from infra.targets.aws.validate.types import count_max_nodes, list_catalog_types, list_typed_groups, machine_of

VPC = re.compile(r"vpc-([0-9a-f]{8}|[0-9a-f]{17})")
SUBNET = re.compile(r"subnet-([0-9a-f]{8}|[0-9a-f]{17})")
# docs.aws.amazon.com/vpc/latest/userguide/vpc-cidr-blocks.html, subnet-sizing.html
LARGEST_PREFIX, SMALLEST_PREFIX = 16, 28
RESERVED_ADDRESSES = 5
# A Lustre filesystem has one address for each of its servers.
LUSTRE_SERVER_GB = 2400


def check_existing_network(spec: ClusterSpec) -> Iterator[Issue]:
    """Report an incomplete or contradictory reference to an existing VPC."""
    network = spec.network
    if network.vpc_id and not network.subnet_ids:
        message = f"required with vpc_id ({network.vpc_id}), but missing; expected private subnets, one per zone"
        yield error("no_subnets", "network.subnet_ids", message, "add `subnet_ids: [subnet-...]`")
    if network.subnet_ids and not network.vpc_id:
        message = f"required with subnet_ids ({network.subnet_ids[0]}, ...), but missing; expected the id of their VPC"
        yield error("no_vpc", "network.vpc_id", message, "add `vpc_id: vpc-...`, or remove subnet_ids")
    if network.vpc_id and network.cidr:
        message = f"'{network.cidr}' has no effect: VPC {network.vpc_id} already has its ranges"
        yield error("cidr_of_vpc", "network.cidr", message, "remove it, or remove vpc_id")


def check_network_ids(spec: ClusterSpec) -> Iterator[Issue]:
    """Report malformed or repeated ids of the VPC and its subnets."""
    vpc = spec.network.vpc_id
    if vpc is not None and not VPC.fullmatch(vpc):
        message = f"'{vpc}' is not a VPC id; allowed: vpc- and 8 or 17 hexadecimal digits"
        yield error("vpc_format", "network.vpc_id", message, "write for example `vpc_id: vpc-0123456789abcdef0`")
    for index, subnet in enumerate(spec.network.subnet_ids):
        where = f"network.subnet_ids[{index}]"
        if not SUBNET.fullmatch(subnet):
            message = f"'{subnet}' is not a subnet id; allowed: subnet- and 8 or 17 hexadecimal digits"
            yield error("subnet_format", where, message, "write for example `subnet-0123456789abcdef0`")
        elif subnet in spec.network.subnet_ids[:index]:
            yield error("subnet_twice", where, f"'{subnet}' is named twice", "remove one of the two")


def check_subnet_zones(spec: ClusterSpec) -> Iterator[Issue]:
    """Report zones that do not match the existing subnets one to one."""
    section = aws_section(spec)
    if section and spec.network.subnet_ids and section.zones:
        subnet_count, zone_count = len(spec.network.subnet_ids), len(section.zones)
        if subnet_count != zone_count:
            message = (
                f"subnets: {subnet_count}, zones: {zone_count}; allowed: one zone for each, in the same order, or none"
            )
            yield error("zones_and_subnets", "aws.zones", message, "name the zone of each subnet, or remove zones")


def check_vpc_size(spec: ClusterSpec) -> Iterator[Issue]:
    """Report a range that AWS does not allow for a VPC."""
    network = _get_range(spec)
    if network and not LARGEST_PREFIX <= network.prefixlen <= SMALLEST_PREFIX:
        message = (
            f"'{network}' is a /{network.prefixlen}; AWS allows a VPC from /{LARGEST_PREFIX} to /{SMALLEST_PREFIX}"
        )
        yield error("vpc_size", "network.cidr", message, "write for example `cidr: 10.0.0.0/16`")


def check_subnet_size(spec: ClusterSpec) -> Iterator[Issue]:
    """Report subnets with too few addresses: every interface with an address takes one."""
    if aws_section(spec) is None or _get_range(spec) is None:
        return
    try:
        private = [subnet for subnet in subnets(spec) if not subnet.public]
    except NoRoom as bad:
        text = str(bad).removeprefix("network.cidr: ")
        message, _, fix = text.partition(". Fix: ")
        yield error("cidr_small", "network.cidr", message, fix)
        return
    for number, subnet in enumerate(private):
        needed = count_addresses(spec, subnet.zone, first=number == 0)
        free = IPv4Network(subnet.cidr).num_addresses - RESERVED_ADDRESSES
        if needed > free:
            message = f"{_describe(subnet)} has {free} addresses, the cluster needs {needed} there"
            yield error(
                "subnet_small", "network.cidr", message, f"write for example `{_suggest_range(spec, needed, free)}`"
            )


def count_addresses(spec: ClusterSpec, zone: str, *, first: bool) -> int:
    """Return the addresses needed in the private subnet of a zone; the first also has controller, login and storage."""
    fixed = 1 + spec.login.enabled + _count_lustre_servers(spec) if first else 0
    nodes = 0
    for group, machine in list_typed_groups(spec).values():
        if zone not in (group.capacity.zones or (zone,)):
            continue
        try:
            nodes += count_max_nodes(group) * addresses(machine, group.fabric, ip_bandwidth=group.ip_bandwidth)
        except NoEfa:
            nodes += count_max_nodes(group)
    mounts = sum(storage.kind == "efs" for storage in spec.storage.values())
    return fixed + nodes + mounts + len(endpoints(spec))


def check_images_without_egress(spec: ClusterSpec) -> Iterator[Issue]:
    """Report AWS's images without egress: they lack Slurm and the Python that set-up needs."""
    if aws_section(spec) is None or spec.network.egress or spec.network.vpc_id:
        return
    first_use: dict[str, str] = {}
    own_image = {f"groups.{name}" for name, group in spec.groups.items() if group.image}
    for where, machine in list_catalog_types(spec).items():
        if images.given(spec, machine) is None and machine_of(where) not in own_image:
            first_use.setdefault(images.field(machine), machine_of(where))
    for field, where in first_use.items():
        message = f"required with `network.egress: false`, but missing: {where} cannot install what AWS's image lacks"
        fix = f"name an image that has the packages in docs/aws.md, `{field}: ami-...`, or write `egress: true`"
        yield error("images_offline", f"aws.{field}", message, fix)


def check_names_without_egress(spec: ClusterSpec) -> Iterator[Issue]:
    """Report groups for which the controller cannot write DNS records, because Route 53 has no VPC endpoint."""
    if spec.network.egress or spec.network.vpc_id:
        return
    fix = "write `egress: true`, or name your own VPC (vpc_id) with access to Route 53"
    for name, (group, _) in list_typed_groups(spec).items():
        if group.count is None:
            message = f"group {name} is autoscaled, but without egress the controller cannot name its nodes"
            yield error("names_offline", "network.egress", message, fix)
        else:
            message = f"a lost node of group {name} is replaced by `make up` only: the controller cannot name it"
            yield warning("replaced_by_up", "network.egress", message, fix)


def check_login_port(spec: ClusterSpec) -> Iterator[Issue]:
    """Report an SSH port, which nodes on AWS do not publish."""
    if spec.login.ssh_port is not None:
        message = (
            f"{spec.login.ssh_port} cannot be published: nodes on AWS are reached through SSM Session Manager only"
        )
        yield error("port_on_aws", "login.ssh_port", message, "remove it; `make ssh` needs no port")


def _describe(subnet: Subnet) -> str:
    return "the private subnet" if subnet.zone == AUTO else f"the subnet of {subnet.zone}"


def _count_lustre_servers(spec: ClusterSpec) -> int:
    sizes = [size_gb(storage) for storage in spec.storage.values() if storage.kind == "fsx-lustre"]
    return sum(1 + -(-gb // LUSTRE_SERVER_GB) for gb in sizes)


def _suggest_range(spec: ClusterSpec, needed: int, free: int) -> str:
    """Return the range that grows by the factor by which the subnet is too small."""
    network = IPv4Network(cidr(spec))
    steps = (-(-(needed + RESERVED_ADDRESSES) // (free + RESERVED_ADDRESSES)) - 1).bit_length()
    prefix = max(network.prefixlen - steps, LARGEST_PREFIX)
    return f"cidr: {network.supernet(new_prefix=prefix)}"


def _get_range(spec: ClusterSpec) -> IPv4Network | None:
    """Return the range of the cluster's own VPC; None if it uses an existing VPC or the range is malformed."""
    if spec.network.vpc_id:
        return None
    try:
        return IPv4Network(cidr(spec))
    except ValueError:
        return None
