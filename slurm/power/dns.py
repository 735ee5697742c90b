"""Names of nodes in the cluster's private zone."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from infra.inventory import Fleet
from slurm.power.cloud import Answer, Cloud

# Route 53 takes 1,000 records in one batch, and counts those of UPSERT twice.
_BATCH = 500
# A node is another machine after a replacement: no resolver may remember the old one for longer than a boot takes.
_TTL_S = 15


def publish(cloud: Cloud, fleet: Fleet, addresses: Mapping[str, str]) -> None:
    records = [_record(f"{name}.{fleet.domain}", address) for name, address in addresses.items()]
    _change(cloud, fleet, "UPSERT", records)


def forget(cloud: Cloud, fleet: Fleet, nodes: Collection[str]) -> None:
    """Removes the records of these nodes, where there are any: a zone is deleted only when it is empty."""
    wanted = {f"{name}.{fleet.domain}." for name in nodes}
    found = [one for one in _records(cloud, fleet) if one["Type"] == "A" and one["Name"] in wanted]
    _change(cloud, fleet, "DELETE", found)


def _records(cloud: Cloud, fleet: Fleet) -> list[Answer]:
    records: list[Answer] = []
    start: dict[str, Any] = {}
    while True:
        zone = fleet.hosted_zone_id
        answer = cloud.call("route53", "list_resource_record_sets", HostedZoneId=zone, **start)
        records += answer["ResourceRecordSets"]
        if not answer["IsTruncated"]:
            return records
        start = {"StartRecordName": answer["NextRecordName"], "StartRecordType": answer["NextRecordType"]}


def _record(name: str, address: str) -> Answer:
    return {"Name": name, "Type": "A", "TTL": _TTL_S, "ResourceRecords": [{"Value": address}]}


def _change(cloud: Cloud, fleet: Fleet, action: str, records: Sequence[Answer]) -> None:
    for first in range(0, len(records), _BATCH):
        changes = [{"Action": action, "ResourceRecordSet": one} for one in records[first : first + _BATCH]]
        cloud.call(
            "route53",
            "change_resource_record_sets",
            HostedZoneId=fleet.hosted_zone_id,
            ChangeBatch={"Changes": changes},
        )
