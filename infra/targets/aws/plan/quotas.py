"""The service quotas that a cluster counts against, and how many vCPUs of each it needs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cluster.catalog.instances import InstanceType
from cluster.spec import ClusterSpec, Purchase
from infra.targets.aws.plan import machines
from infra.targets.aws.plan.capacity import purchases


@dataclass(frozen=True)
class Quota:
    """A service quota of AWS."""

    service: str
    code: str
    name: str
    unit: str = "vCPUs"


# docs.aws.amazon.com/ec2/latest/instancetypes/ec2-instance-quotas.html; the first matching prefix of a family counts.
ON_DEMAND = {
    "p": Quota("ec2", "L-417A185B", "Running On-Demand P instances"),
    "g": Quota("ec2", "L-DB2E81BA", "Running On-Demand G and VT instances"),
    "trn": Quota("ec2", "L-2C3B7624", "Running On-Demand Trn instances"),
    "": Quota("ec2", "L-1216C47A", "Running On-Demand Standard (A, C, D, H, I, M, R, T, Z) instances"),
}
# AWS does not document which quota spot instances of P6 count against.
SPOT = {
    "p4": Quota("ec2", "L-7212CCBC", "All P4, P3 and P2 Spot Instance Requests"),
    "p5": Quota("ec2", "L-C4BD4855", "All P5 Spot Instance Requests"),
    "p": None,
    "g": Quota("ec2", "L-3819A6DF", "All G and VT Spot Instance Requests"),
    "trn": Quota("ec2", "L-6B0D517C", "All Trn Spot Instance Requests"),
    "": Quota("ec2", "L-34B43A08", "All Standard (A, C, D, H, I, M, R, T, Z) Spot Instance Requests"),
}
VPCS = Quota("vpc", "L-F678F1CE", "VPCs per Region", "VPCs")
ADDRESSES = Quota("ec2", "L-0263D0A3", "EC2-VPC Elastic IPs", "addresses")


@dataclass(frozen=True)
class QuotaShare:
    """How much of a quota one property of the spec needs."""

    where: str
    least: int
    """Number of machines that always exist and have no other purchase option."""
    most: int
    """Maximum number of machines."""
    each: int
    """Units per machine."""

    def __str__(self) -> str:
        return f"{self.where}: {self.most} x {self.each}"


@dataclass(frozen=True)
class Need:
    """What a cluster needs of a quota."""

    quota: Quota
    parts: tuple[QuotaShare, ...]

    @property
    def least(self) -> int:
        return sum(part.least * part.each for part in self.parts)

    @property
    def most(self) -> int:
        return sum(part.most * part.each for part in self.parts)


def needs(spec: ClusterSpec) -> tuple[Need, ...]:
    """Return what a cluster needs of each quota."""
    shares: dict[Quota, list[QuotaShare]] = defaultdict(list)
    for quota, share in _shares(spec):
        if quota:
            shares[quota].append(share)
    return tuple(Need(quota, tuple(of_quota)) for quota, of_quota in shares.items())


def unknown(spec: ClusterSpec) -> tuple[str, ...]:
    """Return the properties that count against a quota which AWS does not document."""
    return tuple(share.where for quota, share in _shares(spec) if quota is None)


def quota_of(instance_type: InstanceType, purchase: Purchase) -> Quota | None:
    """Return the quota of a purchase; a reservation counts as on demand. Blocks have no quota."""
    table = SPOT if purchase == "spot" else ON_DEMAND
    return next(quota for prefix, quota in table.items() if instance_type.family.startswith(prefix))


def _shares(spec: ClusterSpec) -> Iterator[tuple[Quota | None, QuotaShare]]:
    fixed = {"controller": machines.controller(spec), **({"login": machines.login(spec)} if spec.login.enabled else {})}
    for where, instance_type in fixed.items():
        yield quota_of(instance_type, "on-demand"), QuotaShare(where, 1, 1, instance_type.vcpus)
    for name, group in spec.groups.items():
        types, ways = machines.compute_types(group), purchases(group)
        most = group.count if group.count is not None else group.max or 0
        always = group.count if group.count is not None else group.min or 0
        for way in ways:
            # Machines in a capacity block do not count against these limits (from experience; not documented).
            if way != "block" and most:
                least = always if len(ways) == 1 and len(types) == 1 else 0
                for quota, vcpus in _largest_by_quota(types, way).items():
                    yield quota, QuotaShare(f"groups.{name}", least, most, vcpus)


def _largest_by_quota(types: Sequence[InstanceType], way: Purchase) -> dict[Quota | None, int]:
    """Return the vCPUs of the largest machine that a purchase may launch, by quota; reservations are for one type."""
    largest: dict[Quota | None, int] = {}
    for kind in types if way != "reservation" else types[:1]:
        quota = quota_of(kind, way)
        largest[quota] = max(largest.get(quota, 0), kind.vcpus)
    return largest
