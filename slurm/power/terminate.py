"""Ending machines: those it is given, of this cluster alone."""

from __future__ import annotations

from collections.abc import Iterable

from slurm.power.cloud import Cloud
from slurm.power.errors import Refused
from slurm.power.instances import Instance

# As many as EC2 takes in one call.
_BATCH = 1000


def terminate(cloud: Cloud, machines: Iterable[Instance]) -> list[str]:
    """Their ids. What `instances.find` found is this cluster's: nothing else can be handed in."""
    ids = sorted({machine.id for machine in machines})
    for first in range(0, len(ids), _BATCH):
        _end(cloud, ids[first : first + _BATCH])
    return ids


def _end(cloud: Cloud, ids: list[str]) -> None:
    try:
        cloud.call("ec2", "terminate_instances", InstanceIds=ids)
    except Refused as refused:
        # One id that AWS has forgotten makes the whole call fail: the others go one by one.
        if refused.fault.kind != "gone":
            raise
        if len(ids) > 1:
            for one in ids:
                _end(cloud, [one])
