"""Options that had nothing lately: passed over for three minutes, as Karpenter does. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from cluster.inventory import LaunchOption
from slurm.power.launch import Shortage

SECONDS = 180.0
# Of these another call within minutes would say the same.
_LASTING = ("shortage", "quota")

Until = Mapping[str, float]
"""When an option may be tried again, by key."""


def usable(options: Sequence[LaunchOption], until: Until, now: float) -> list[LaunchOption]:
    """In their order, without those that are cooling down."""
    return [option for option in options if until.get(key(option), 0.0) <= now]


def remembered(until: Until, failed: Iterable[Shortage], now: float) -> dict[str, float]:
    """With what failed just now, without what is over."""
    fresh = {key(one.option): now + SECONDS for one in failed if one.fault.kind in _LASTING}
    return {option: end for option, end in until.items() if end > now} | fresh


def key(option: LaunchOption) -> str:
    return " ".join([option.instance_type, option.purchase, option.zone, option.reservation or ""]).strip()
