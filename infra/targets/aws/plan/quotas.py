"""Which service quotas a cluster draws on, and how many vCPUs of each it needs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from cluster.catalog.instances import InstanceType
from cluster.spec import ClusterSpec, Purchase
from infra.targets.aws.plan import machines
from infra.targets.aws.plan.capacity import purchases


@dataclass(frozen=True)
class Quota:
    service: str
    code: str
    name: str
    unit: str = "vCPUs"


# docs.aws.amazon.com/ec2/latest/instancetypes/ec2-instance-quotas.html; the first prefix of a family that fits counts.
ON_DEMAND = {
    "p": Quota("ec2", "L-417A185B", "Running On-Demand P instances"),
    "g": Quota("ec2", "L-DB2E81BA", "Running On-Demand G and VT instances"),
    "trn": Quota("ec2", "L-2C3B7624", "Running On-Demand Trn instances"),
    "": Quota("ec2", "L-1216C47A", "Running On-Demand Standard (A, C, D, H, I, M, R, T, Z) instances"),
}
# Nothing documents which quota spot machines of P6 count against.
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
class Part:
    """What one property of the spec needs."""

    where: str
    least: int
    """Machines that always exist and can be had in no other way."""
    most: int
    each: int

    def __str__(self) -> str:
        return f"{self.where}: {self.most} x {self.each}"


@dataclass(frozen=True)
class Need:
    quota: Quota
    parts: tuple[Part, ...]

    @property
    def least(self) -> int:
        return sum(part.least * part.each for part in self.parts)

    @property
    def most(self) -> int:
        return sum(part.most * part.each for part in self.parts)


def needs(spec: ClusterSpec) -> tuple[Need, ...]:
    parts: dict[Quota, list[Part]] = defaultdict(list)
    for quota, part in _parts(spec):
        if quota:
            parts[quota].append(part)
    return tuple(Need(quota, tuple(found)) for quota, found in parts.items())


def unknown(spec: ClusterSpec) -> tuple[str, ...]:
    """Properties that draw on a quota which nobody documents."""
    return tuple(part.where for quota, part in _parts(spec) if quota is None)


def quota_of(found: InstanceType, purchase: Purchase) -> Quota | None:
    """A reservation counts as on demand; for a block, which counts against nothing, there is no question to ask."""
    table = SPOT if purchase == "spot" else ON_DEMAND
    return next(quota for prefix, quota in table.items() if found.family.startswith(prefix))


def _parts(spec: ClusterSpec) -> Iterator[tuple[Quota | None, Part]]:
    fixed = {"controller": machines.controller(spec), **({"login": machines.login(spec)} if spec.login.enabled else {})}
    for where, found in fixed.items():
        yield quota_of(found, "on-demand"), Part(where, 1, 1, found.vcpus)
    for name, group in spec.groups.items():
        found, ways = machines.compute(group), purchases(group)
        most = group.count if group.count is not None else group.max or 0
        always = group.count if group.count is not None else group.min or 0
        for way in ways:
            # Machines in a capacity block are outside these limits (from experience, not looked up).
            if way != "block" and most:
                yield quota_of(found, way), Part(f"groups.{name}", always if len(ways) == 1 else 0, most, found.vcpus)
