"""Which instance of a scale set is which node. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from infra.targets.azure.answers import is_running, read_machine_id

_FAILED = "Failed"


@dataclass(frozen=True)
class Instance:
    """A machine of a scale set."""

    number: str
    """Its id in the scale set. A scale set that is created again starts at 0 again."""
    arm_id: str
    machine_id: str
    """Its id of its own, which no other machine ever has."""
    failed: bool
    running: bool
    outdated: bool = False
    """Whether it was created from another model than the scale set now has."""


def read_instances(answers: Iterable[Mapping[str, Any]]) -> tuple[Instance, ...]:
    """Return the instances of a scale set, the oldest first."""
    instances = [
        Instance(
            str(answer["instanceId"]),
            str(answer["id"]),
            read_machine_id(answer),
            answer.get("properties", {}).get("provisioningState") == _FAILED,
            is_running(answer),
            answer.get("properties", {}).get("latestModelApplied") is False,
        )
        for answer in answers
    ]
    return tuple(sorted(instances, key=lambda instance: int(instance.number)))


def assign_nodes(nodes: Sequence[str], instances: Sequence[Instance], previous: Mapping[str, str]) -> Mapping[str, str]:
    """Return the instance's number by node: those of before, then in order; nodes without an instance have none.

    Instances of a Uniform scale set cannot have tags, so which instance was which node comes from Pulumi's state.
    Without it, the oldest instance is the first node, as when all were created together.
    """
    existing = {instance.number for instance in instances}
    staying = {node: previous[node] for node in nodes if previous.get(node) in existing}
    free = iter([instance.number for instance in instances if instance.number not in staying.values()])
    return {node: number for node in nodes if (number := staying.get(node) or next(free, None)) is not None}
