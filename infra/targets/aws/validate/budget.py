"""Rules about money: what the spec allows, against what the cluster costs at most."""

from __future__ import annotations

import re
from collections.abc import Iterator

from cluster.catalog.lustre import THROUGHPUTS
from cluster.spec import Budget, ClusterSpec
from cluster.spec.issue import Issue, error, warning
from infra.targets.aws.cost import cost
from infra.targets.aws.spec import aws_section
from infra.targets.aws.validate.types import complete, known
from infra.targets.cost import Cost

# What depends on prices: those of today, where there are any, have the last word.
BY_PRICE = frozenset({"over_budget", "no_price"})
EMAIL = re.compile(r"[^@\s]+@[^@\s]+\.[^@\s.]+")


def hourly(spec: ClusterSpec) -> Iterator[Issue]:
    """At most: the queue can bring every autoscaled node up at once."""
    price = _price(spec)
    return iter(()) if price is None else _hourly(spec, price)


def monthly(spec: ClusterSpec) -> Iterator[Issue]:
    """At least: what the queue brings up beyond that is what the budget is there to end."""
    price = _price(spec)
    return iter(()) if price is None else _monthly(spec, price)


def unknown_price(spec: ClusterSpec) -> Iterator[Issue]:
    price = _price(spec)
    return iter(()) if price is None else _unknown(spec, price)


def affordable(spec: ClusterSpec, price: Cost) -> Iterator[Issue]:
    """The three above by other prices than those of the dated table."""
    for rule in (_hourly, _monthly, _unknown):
        yield from rule(spec, price)


def notify(spec: ClusterSpec) -> Iterator[Issue]:
    for index, address in enumerate(spec.budget.notify):
        if not EMAIL.fullmatch(address):
            message = f"'{address}' is no e-mail address"
            where = f"budget.notify[{index}]"
            yield error("notify_format", where, message, "write for example `notify: [ops@example.com]`")
    if spec.budget.notify and spec.budget.usd_per_month is None:
        message = "nobody is told: there is no usd_per_month to tell about"
        yield error("notify_alone", "budget.notify", message, "add `usd_per_month: 5000`, or remove notify")
    if spec.budget.usd_per_month is not None and not spec.budget.notify:
        message = "without somebody to tell AWS ends no launches: when it is spent, only idle GPU nodes are stopped"
        yield warning("budget_silent", "budget.usd_per_month", message, "add `notify: [ops@example.com]`")


def unread(spec: ClusterSpec) -> Iterator[Issue]:
    """Budgets has no endpoint in a VPC."""
    if spec.budget.usd_per_month is None or spec.network.egress or spec.network.vpc_id:
        return
    message = "the controller cannot read it without a way out: idle GPU nodes go on when it is spent"
    fix = "write `egress: true`, or name a VPC of yours (vpc_id) from which AWS Budgets can be reached"
    yield warning("budget_offline", "budget.usd_per_month", message, fix)


def _hourly(spec: ClusterSpec, price: Cost) -> Iterator[Issue]:
    allowed = spec.budget.usd_per_hour
    if allowed is None or price.usd_per_hour <= allowed:
        return
    message = f"{allowed:g} is less than the {price.usd_per_hour:.2f} USD per hour that the cluster costs at most"
    fix = "fewer or smaller nodes, a lower max, or a higher budget; `make cost` shows each part"
    yield error("over_budget", "budget.usd_per_hour", message, fix)


def _monthly(spec: ClusterSpec, price: Cost) -> Iterator[Issue]:
    allowed = spec.budget.usd_per_month
    if allowed is None or price.usd_per_month_min <= allowed:
        return
    least = f"{price.usd_per_month_min:,.2f} USD per month that the cluster costs when nobody uses it"
    message = f"{allowed:g} is less than the {least}"
    yield error("over_budget", "budget.usd_per_month", message, "fewer nodes that always exist, or a higher budget")


def _unknown(spec: ClusterSpec, price: Cost) -> Iterator[Issue]:
    section = aws_section(spec)
    if section is None or not price.unpriced:
        return
    what = "; ".join(dict.fromkeys(line.what for line in price.unpriced))
    message = f"no price of {what} is known in {section.region}: the cost shown is too low"
    if spec.budget == Budget():
        yield warning("no_price", "budget", message, "look at aws.amazon.com/ec2/pricing before `make up`")
    else:
        yield error("no_price", "budget", message, "remove the budget, or choose a type and region with a known price")


def _price(spec: ClusterSpec) -> Cost | None:
    """None where something has no price because it cannot be bought at all: other rules say so."""
    section = aws_section(spec)
    if not section or not complete(spec) or not _sold(spec):
        return None
    return cost(spec) if all(section.region in found.regions for found in known(spec).values()) else None


def _sold(spec: ClusterSpec) -> bool:
    return all(storage.throughput in (None, *THROUGHPUTS) for storage in spec.storage.values())
