"""What a cluster on AWS costs by today's prices, or by the dated table where AWS tells none; it says which."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cluster.spec import ClusterSpec
from infra.targets.aws.cost import Cost, cost
from muster.commands import screen

if TYPE_CHECKING:
    from infra.targets.aws.preflight import Account


@dataclass(frozen=True)
class Priced:
    cost: Cost
    source: str
    """Where the prices of its instances are from."""
    today: bool


def by_table(spec: ClusterSpec, why: str) -> Priced:
    """`why`: what became of today's."""
    table = cost(spec)
    region = spec.aws.region if spec.aws else ""
    return Priced(table, f"instance prices of {table.priced_on}, {region}; today's {why}", today=False)


def by_aws(spec: ClusterSpec, account: Account) -> Priced:
    from infra.targets.aws.live_prices import SOURCE, live_prices  # noqa: PLC0415  # loads AWS's libraries

    with screen.out().status("asking AWS for prices"):
        live = live_prices(spec, account)
    if not live.known:
        return by_table(spec, f"could not be read ({live.problem})")
    some = f"; some are of {cost(spec).priced_on} ({live.problem})" if live.problem else ""
    told = f"instance prices of today, {live.on}, {account.region}, by the {SOURCE}{some}"
    return Priced(cost(spec, live, live.on), told, today=True)
