"""States of nodes as Slurm shows them, and a node and a machine for the tables of rules."""

from __future__ import annotations

from slurm.control.nodes import NodeState
from slurm.power.launcher import Machine

UP, BUSY = "IDLE+CLOUD", "ALLOCATED+CLOUD"
OFF, COMING = "IDLE+CLOUD+POWERED_DOWN", "ALLOCATED+CLOUD+NOT_RESPONDING+POWERING_UP"
DOWN, DRAINED = "DOWN+CLOUD+NOT_RESPONDING", "IDLE+CLOUD+DRAIN"
NEVER = "DOWN+CLOUD+NOT_RESPONDING+POWERING_UP"


def node(state: str, reason: str = "", address: str = "gpu-1") -> NodeState:
    base, *flags = state.split("+")
    return NodeState(base, frozenset(flags), reason, address=address, gpus=True)


def machine(name: str = "gpu-1", number: int = 1, **changes: object) -> Machine:
    fields = {"zone": "us-east-1a", "address": f"10.0.0.{number}", "launched": float(number), "running": True}
    return Machine(id=f"i-{number}", name=name, group="gpu", **(fields | changes))
