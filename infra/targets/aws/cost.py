"""The estimated cost of a cluster: minimum and maximum of each part, and what the prices do not cover."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import date
from typing import Protocol

from cluster.catalog import lustre
from cluster.catalog.prices import Price, instance_price, instances_priced_on, service_price
from cluster.plural import format_count
from cluster.spec import ClusterSpec, Purchase, Storage
from infra.targets.aws.plan import launch_template, machines, network
from infra.targets.aws.plan.capacity import purchases, type_names
from infra.targets.aws.spec import aws_section, region_of
from infra.targets.cost import Cost, Line

# Included in the price of a gp3 volume (docs.aws.amazon.com/ebs/latest/userguide/general-purpose.html).
FREE_IOPS, FREE_MBS = 3000, 125

NOT_INCLUDED = (
    "data that leaves AWS, crosses zones or passes the NAT gateway",
    "what is stored in EFS and S3, what is read from and written to EFS, and requests to S3",
    "logs, flow logs and metrics by volume",
    "snapshots, backups, taxes, support, and discounts you may have",
)
PRICE_PAGE = "aws.amazon.com/pricing"

Range = tuple[float, float]
"""USD per hour, minimum and maximum."""


class Prices(Protocol):
    """A source of hourly instance prices: the dated table, or today's prices of AWS."""

    def __call__(self, name: str, region: str, *, spot: bool = False) -> Price | None: ...


def cost(spec: ClusterSpec, prices: Prices = instance_price, priced_on: date | None = None) -> Cost:
    """Return the cost of a valid spec."""
    lines = (*_fixed(spec, prices), *_groups(spec, prices), *_storages(spec), *_network(spec), *_shared_services(spec))
    return Cost(lines, priced_on or instances_priced_on(), NOT_INCLUDED, PRICE_PAGE)


def _fixed(spec: ClusterSpec, prices: Prices) -> Iterator[Line]:
    disk, root, state = service_price("ebs-gp3"), machines.FIXED_ROOT_GB, machines.STATE_GB
    yield _machine("controller", machines.controller(spec).name, _region(spec), prices)
    yield _service("controller", f"volumes, {root + state} GB gp3", spec, {disk: root + state})
    section = aws_section(spec)
    if section and section.state_backup_days:
        yield _backups(
            "controller", f"daily snapshots, kept for {format_count(section.state_backup_days, 'day')}", "ebs-snapshot"
        )
    if spec.login.enabled:
        yield _machine("login", machines.login(spec).name, _region(spec), prices)
        yield _service("login", f"volume, {root} GB gp3", spec, {disk: root})


def _machine(part: str, name: str, region: str, prices: Prices) -> Line:
    price = prices(name, region)
    return Line(part, name, 1, price.usd) if price else Line(part, name, 1, 0.0, _no_price(region), open=True)


def _groups(spec: ClusterSpec, prices: Prices) -> Iterator[Line]:
    for name, group in spec.groups.items():
        part = f"groups.{name}"
        most = group.count if group.count is not None else group.max or 0
        least = group.count if group.count is not None else group.min or 0
        price_ranges = {
            (way, kind): _price_range(kind, way, _region(spec), prices)
            for way in purchases(group)
            for kind in type_names(group, way)
        }
        yield _nodes(part, (least, most), price_ranges, _region(spec))
        gigabytes = launch_template.root_gb(group)
        what = f"volume, {gigabytes} GB gp3 each"
        yield _service(part, what, spec, _root_volume(gigabytes), (least, most))


def _nodes(part: str, counts: tuple[int, int], paid: Mapping[tuple[Purchase, str], Range | None], region: str) -> Line:
    least, most = counts
    ranges = [usd for usd in paid.values() if usd is not None]
    ways, types = dict.fromkeys(way for way, _ in paid), list(dict.fromkeys(kind for _, kind in paid))
    what = f"{' or '.join(types)}, {', then '.join(ways)}"
    if not ranges:
        return Line(part, what, most, 0.0, _no_price(region), least, open=True)
    notes = [_NOTES[way] for way in ways if way in _NOTES]
    if len(types) > 1 and (first := [usd for (_, kind), (_, usd) in _priced(paid).items() if kind == types[0]]):
        notes.insert(0, f"only {types[0]}: {max(first) * most:.2f}")
    if missing := [key for key, usd in paid.items() if usd is None]:
        unpriced = [way if len(types) == 1 else f"{way} {kind}" for way, kind in missing]
        notes.append(f"{_no_price(region)} of {', '.join(unpriced)}")
    highest, lowest = max(usd for _, usd in ranges), min(usd for usd, _ in ranges)
    return Line(part, what, most, highest * most, "; ".join(notes), least, lowest * least, bool(missing))


def _priced(paid: Mapping[tuple[Purchase, str], Range | None]) -> dict[tuple[Purchase, str], Range]:
    return {key: usd for key, usd in paid.items() if usd is not None}


_NOTES: dict[Purchase, str] = {
    "spot": "spot prices change, up to the on-demand price",
    "reservation": "a reservation costs this even while it is unused",
    "block": "the block was paid in advance",
}


def _price_range(name: str, way: Purchase, region: str, prices: Prices) -> Range | None:
    """Return the hourly price of a machine; None if there is no price.

    Spot instances are launched without a maximum price, so they cost at most the on-demand price
    (docs.aws.amazon.com/AWSEC2/latest/UserGuide/using-spot-instances-request.html).
    """
    if way == "block":
        return 0.0, 0.0
    price = prices(name, region, spot=way == "spot")
    if price is None:
        return None
    limit = prices(name, region) if way == "spot" else None
    return price.usd, max(price.usd, limit.usd) if limit else price.usd


def _root_volume(gigabytes: int) -> dict[Price, float]:
    return {
        service_price("ebs-gp3"): gigabytes,
        service_price("ebs-gp3-iops"): max(0, launch_template.ROOT_IOPS - FREE_IOPS),
        service_price("ebs-gp3-throughput"): max(0, launch_template.ROOT_MBS - FREE_MBS),
    }


def _storages(spec: ClusterSpec) -> Iterator[Line]:
    for name, entry in spec.storage.items():
        yield _storage(f"storage.{name}", entry, spec)
        if entry.backup_days:
            price = "efs-backup" if entry.kind == "efs" else "fsx-backup"
            yield _backups(
                f"storage.{name}", f"daily backups, kept for {format_count(entry.backup_days, 'day')}", price
            )


def _backups(part: str, what: str, price: str) -> Line:
    """Return a line without an amount: how much of the files changes from day to day is unknown."""
    return Line(part, what, 1, 0.0, f"{service_price(price).usd:.2f} USD per GB and month of what is stored")


def _storage(part: str, entry: Storage, spec: ClusterSpec) -> Line:
    if entry.kind == "existing":
        return Line(part, "existing filesystem", 1, 0.0, "already paid for")
    if entry.kind == "efs":
        return Line(part, "EFS", 1, 0.0, _describe_efs_prices())
    size, speed = lustre.size_gb(entry), lustre.throughput(entry)
    what = f"FSx for Lustre, {size} GB at {speed} MB/s per TiB"
    return _service(part, what, spec, {service_price(f"fsx-lustre-{speed}"): size})


def _describe_efs_prices() -> str:
    """Return what EFS charges by use: what is stored, and, because its throughput is elastic, what is transferred."""
    stored, read, written = (service_price(name).usd for name in ("efs", "efs-read", "efs-write"))
    return f"{stored:.2f} USD per GB and month of what is stored, {read:.2f} per GB read, {written:.2f} per GB written"


def _network(spec: ClusterSpec) -> Iterator[Line]:
    if spec.network.vpc_id:
        yield Line("network", "existing VPC", 1, 0.0, "already paid for")
        return
    if spec.network.egress:
        gateway = {service_price("nat-gateway"): 1.0, service_price("public-ipv4"): 1.0}
        yield _service("network", "NAT gateway with its address", spec, gateway)
    count = len(network.endpoints(spec)) * len(network.zones(spec))
    yield _service("network", "private endpoints", spec, {service_price("interface-endpoint"): 1.0}, (count, count))


def _shared_services(spec: ClusterSpec) -> Iterator[Line]:
    section = aws_section(spec)
    if section and not section.kms_key:
        yield _service("aws", "encryption key", spec, {service_price("kms-key"): 1.0})
    yield _service("aws", "private name zone", spec, {service_price("route53-zone"): 1.0})


def _service(
    part: str, what: str, spec: ClusterSpec, each: Mapping[Price, float], counts: tuple[int, int] = (1, 1)
) -> Line:
    """Return a line of identical items; `each` has the priced units of an item, `counts` the minimum and maximum."""
    least, most = counts
    usd = sum(price.usd_per_hour * amount for price, amount in each.items())
    elsewhere = [f"price of {price.region}" for price in each if price.region != _region(spec)]
    notes = [*elsewhere[:1], *(["unverified"] if not all(price.verified for price in each) else [])]
    return Line(part, what, most, usd * most, ", ".join(notes), least, usd * least, bool(notes))


def _region(spec: ClusterSpec) -> str:
    return region_of(spec)


def _no_price(region: str) -> str:
    return f"no price known in {region}"
