"""What the subjects of a timeline cost per hour: machines, NAT gateways and Lustre filesystems."""

from __future__ import annotations

from collections.abc import Sequence

from cluster.catalog import lustre
from cluster.catalog.prices import instance_price, service_price
from cluster.spec import ClusterSpec
from infra.targets.aws.rehearse.instances import Instances
from infra.targets.aws.rehearse.timeline import Event
from infra.targets.aws.spec import region_of


def list_prices(spec: ClusterSpec, instances: Instances, events: Sequence[Event]) -> dict[str, float]:
    """Return USD per hour by subject; what has no price in the table, or no fixed one, is left out."""
    machines = {}
    for instance in instances.by_id.values():
        if price := instance_price(instance.raw.instance_type, region_of(spec), spot=instance.is_spot):
            machines[instance.name] = price.usd_per_hour
    subjects = dict.fromkeys(event.subject for event in events)
    return machines | {subject: usd for subject in subjects if (usd := price_resource(spec, subject))}


def price_resource(spec: ClusterSpec, subject: str) -> float:
    """Return what a NAT gateway with its address or a Lustre filesystem costs per hour; 0 for everything else."""
    if subject.startswith("NAT gateway "):
        return service_price("nat-gateway").usd_per_hour + service_price("public-ipv4").usd_per_hour
    if not subject.startswith("FSx filesystem "):
        return 0.0
    entries = [
        entry for name, entry in spec.storage.items() if subject.endswith(f"-{name}") and entry.kind == "fsx-lustre"
    ]
    return sum(
        service_price(f"fsx-lustre-{lustre.throughput(entry)}").usd_per_hour * lustre.size_gb(entry)
        for entry in entries
    )
