"""The cost of a cluster on AWS by today's prices, or by the dated table if AWS returns none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cluster.spec import ClusterSpec
from infra.targets.aws.cost import cost
from infra.targets.aws.spec import region_of
from infra.targets.cost import Quote
from infra.targets.target import Console

if TYPE_CHECKING:
    from infra.targets.aws.preflight import Account


def quote_by_table(spec: ClusterSpec, reason: str) -> Quote:
    """Return the cost by the dated table; `reason` says why today's prices are not used."""
    table = cost(spec)
    return Quote(table, f"instance prices of {table.priced_on}, {region_of(spec)}; today's prices {reason}")


def quote_by_aws(spec: ClusterSpec, account: Account, console: Console) -> Quote:
    """Return the cost by today's prices, or by the table if they cannot be read."""
    from infra.targets.aws.live_prices import SOURCE, fetch_live_prices  # noqa: PLC0415  # loads AWS's libraries

    with console.status("asking AWS for prices"):
        live = fetch_live_prices(spec, account)
    if not live.available:
        return quote_by_table(spec, f"could not be read ({live.problem})")
    exceptions = f"; some are of {cost(spec).priced_on} ({live.problem})" if live.problem else ""
    source = f"instance prices of today, {live.on}, {account.region}, by the {SOURCE}{exceptions}"
    return Quote(cost(spec, live, live.on), source, today=True)
