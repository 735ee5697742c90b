"""What a cluster on AWS costs by today's prices, or by the dated table where AWS gives none; the quote says which."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cluster.spec import ClusterSpec
from infra.targets.aws.cost import cost
from infra.targets.aws.spec import region_of
from infra.targets.cost import Quote
from infra.targets.target import Console

if TYPE_CHECKING:
    from infra.targets.aws.preflight import Account


def quote_by_table(spec: ClusterSpec, why: str) -> Quote:
    """Return the cost by the dated table; `why` says what became of today's prices."""
    table = cost(spec)
    return Quote(table, f"instance prices of {table.priced_on}, {region_of(spec)}; today's {why}")


def quote_by_aws(spec: ClusterSpec, account: Account, console: Console) -> Quote:
    """Return the cost by today's prices, or by the table where they cannot be read."""
    from infra.targets.aws.live_prices import SOURCE, live_prices  # noqa: PLC0415  # loads AWS's libraries

    with console.status("asking AWS for prices"):
        live = live_prices(spec, account)
    if not live.known:
        return quote_by_table(spec, f"could not be read ({live.problem})")
    some = f"; some are of {cost(spec).priced_on} ({live.problem})" if live.problem else ""
    source = f"instance prices of today, {live.on}, {account.region}, by the {SOURCE}{some}"
    return Quote(cost(spec, live, live.on), source, today=True)
