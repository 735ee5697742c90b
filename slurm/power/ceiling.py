"""The ceiling: when the month's budget is spent, GPU nodes that do nothing are stopped, also those always there."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from cluster.inventory import Fleet
from slurm.power.cloud import Cloud
from slurm.power.memory import Memory
from slurm.power.slurmctld import PowerNode

# AWS works out what was spent a few times a day.
ASK_EVERY_S = 900.0
_NAME = "ceiling"


@dataclass(frozen=True)
class Spending:
    spent: float
    limit: float

    @property
    def over(self) -> bool:
        return self.spent >= self.limit

    def __str__(self) -> str:
        return f"{self.spent:,.0f} of {self.limit:,.0f} USD spent this month"


def spending(cloud: Cloud, fleet: Fleet, memory: Memory, now: float) -> Spending | None:
    """None for a cluster without a budget, or one that cannot be read."""
    if not fleet.budget_name:
        return None
    kept = memory.load(_NAME)
    if not kept or now - kept["at"] >= ASK_EVERY_S:
        # Before it is asked: where AWS does not answer, every look would hold up launches for minutes.
        memory.keep(_NAME, kept | {"at": now})
        memory.keep(_NAME, {"at": now, **_ask(cloud, fleet.budget_name)})
    return known(memory)


def known(memory: Memory) -> Spending | None:
    """As it was when it was last asked for; None where it never could be."""
    kept = memory.load(_NAME)
    return Spending(kept["spent"], kept["limit"]) if "spent" in kept else None


def to_stop(nodes: Iterable[PowerNode]) -> list[str]:
    """What works, holds GPUs and has no job."""
    return [node.name for node in nodes if node.gpus and node.works and not node.busy]


def _ask(cloud: Cloud, name: str) -> dict[str, Any]:
    account = cloud.call("sts", "get_caller_identity")["Account"]
    budget = cloud.call("budgets", "describe_budget", AccountId=account, BudgetName=name)["Budget"]
    spent = budget.get("CalculatedSpend", {}).get("ActualSpend", {}).get("Amount", 0)
    return {"spent": float(spent), "limit": float(budget["BudgetLimit"]["Amount"])}
