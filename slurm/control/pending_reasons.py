"""Slurm's reasons why a job is waiting, in plain words."""

from __future__ import annotations

_REASONS = {
    "Resources": "waiting for nodes to be free",
    "Priority": "waiting behind other jobs",
    "ReqNodeNotAvail": "a requested node is down or drained",
    "PartitionConfig": "the request exceeds the limits of the partition",
    "Dependency": "waiting for another job",
}


def describe_reason(reason: str) -> str:
    """Return a reason in plain words, with the details that Slurm appends to it; unknown ones stay as they are."""
    name, _, details = reason.strip().strip("()").partition(",")
    return ", ".join(filter(None, (_REASONS.get(name, name), details.strip())))
