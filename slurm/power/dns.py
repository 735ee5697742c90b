"""Names of nodes in the cluster's private zone."""

from __future__ import annotations

from collections.abc import Mapping

from cluster.inventory import Fleet
from slurm.power.cloud import Answer, Cloud

# Route 53 takes 1,000 records in one batch, and counts those of UPSERT twice.
_BATCH = 500
# A node is another machine after a replacement: no resolver may remember the old one for longer than a boot takes.
_TTL_S = 15


def publish(cloud: Cloud, fleet: Fleet, addresses: Mapping[str, str]) -> None:
    """Records of nodes that are gone stay: the next machine of the name takes them over, the zone goes with all."""
    records = [_record(f"{name}.{fleet.domain}", address) for name, address in addresses.items()]
    for first in range(0, len(records), _BATCH):
        changes = [{"Action": "UPSERT", "ResourceRecordSet": one} for one in records[first : first + _BATCH]]
        zone, batch = fleet.hosted_zone_id, {"Changes": changes}
        cloud.call("route53", "change_resource_record_sets", HostedZoneId=zone, ChangeBatch=batch)


def _record(name: str, address: str) -> Answer:
    return {"Name": name, "Type": "A", "TTL": _TTL_S, "ResourceRecords": [{"Value": address}]}
