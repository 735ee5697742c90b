"""Rules about the budget: what the spec allows, compared with what the cluster costs."""

from __future__ import annotations

import re
from collections.abc import Iterator

from cluster.catalog.lustre import THROUGHPUTS
from cluster.spec import Budget, ClusterSpec
from cluster.spec.issue import Issue, error, warning
from infra.targets.aws.cost import cost
from infra.targets.aws.spec import aws_section
from infra.targets.aws.validate.types import has_all_types, list_catalog_types
from infra.targets.cost import Cost

# Issues that depend on prices: if today's prices are available, they replace these.
BY_PRICE = frozenset({"over_budget", "no_price"})
EMAIL = re.compile(r"[^@\s]+@[^@\s]+\.[^@\s.]+")


def check_hourly_budget(spec: ClusterSpec) -> Iterator[Issue]:
    """Report an hourly budget below the maximum cost: the queue can start every autoscaled node at once."""
    price = _compute_cost(spec)
    return iter(()) if price is None else _compare_hourly(spec, price)


def check_monthly_budget(spec: ClusterSpec) -> Iterator[Issue]:
    """Report a monthly budget below the minimum cost; further launches are stopped by the budget itself."""
    price = _compute_cost(spec)
    return iter(()) if price is None else _compare_monthly(spec, price)


def check_prices(spec: ClusterSpec) -> Iterator[Issue]:
    """Report machines whose price is unknown."""
    price = _compute_cost(spec)
    return iter(()) if price is None else _report_unpriced(spec, price)


def check_budget(spec: ClusterSpec, price: Cost) -> Iterator[Issue]:
    """Yield the issues of the three rules above with other prices than those of the dated table."""
    for rule in (_compare_hourly, _compare_monthly, _report_unpriced):
        yield from rule(spec, price)


def check_notify(spec: ClusterSpec) -> Iterator[Issue]:
    """Report malformed addresses, a monthly budget without addresses, and addresses without a budget."""
    for index, address in enumerate(spec.budget.notify):
        if not EMAIL.fullmatch(address):
            message = f"'{address}' is not an e-mail address"
            where = f"budget.notify[{index}]"
            yield error("notify_format", where, message, "write for example `notify: [ops@example.com]`")
    if spec.budget.notify and spec.budget.usd_per_month is None:
        message = "has no effect: without usd_per_month there is nothing to report"
        yield error("notify_alone", "budget.notify", message, "add `usd_per_month: 5000`, or remove notify")
    if spec.budget.usd_per_month is not None and not spec.budget.notify:
        message = "without notify AWS blocks no launches: when the budget is spent, only idle GPU nodes are stopped"
        yield warning("budget_silent", "budget.usd_per_month", message, "add `notify: [ops@example.com]`")


def check_budget_without_egress(spec: ClusterSpec) -> Iterator[Issue]:
    """Warn about a monthly budget without egress: AWS Budgets has no VPC endpoint."""
    if spec.budget.usd_per_month is None or spec.network.egress or spec.network.vpc_id:
        return
    message = "without egress the controller cannot read it: idle GPU nodes keep running when it is spent"
    fix = "write `egress: true`, or name your own VPC (vpc_id) with access to AWS Budgets"
    yield warning("budget_offline", "budget.usd_per_month", message, fix)


def _compare_hourly(spec: ClusterSpec, price: Cost) -> Iterator[Issue]:
    allowed = spec.budget.usd_per_hour
    if allowed is None or price.usd_per_hour <= allowed:
        return
    message = f"{allowed:g} is less than the {price.usd_per_hour:.2f} USD per hour that the cluster costs at most"
    fix = "fewer or smaller nodes, a lower max, or a higher budget; `make cost` shows each part"
    yield error("over_budget", "budget.usd_per_hour", message, fix)


def _compare_monthly(spec: ClusterSpec, price: Cost) -> Iterator[Issue]:
    allowed = spec.budget.usd_per_month
    if allowed is None or price.usd_per_month_min <= allowed:
        return
    cost_text = f"{price.usd_per_month_min:,.2f} USD per month that the cluster costs while idle"
    message = f"{allowed:g} is less than the {cost_text}"
    yield error("over_budget", "budget.usd_per_month", message, "fewer nodes that always exist, or a higher budget")


def _report_unpriced(spec: ClusterSpec, price: Cost) -> Iterator[Issue]:
    section = aws_section(spec)
    if section is None or not price.unpriced:
        return
    what = "; ".join(dict.fromkeys(line.what for line in price.unpriced))
    message = f"no price of {what} is known in {section.region}: the cost shown is too low"
    if spec.budget == Budget():
        yield warning("no_price", "budget", message, "check aws.amazon.com/ec2/pricing before `make up`")
    else:
        yield error("no_price", "budget", message, "remove the budget, or choose a type and region with a known price")


def _compute_cost(spec: ClusterSpec) -> Cost | None:
    """Return the cost; None if something cannot be bought at all, which other rules report."""
    section = aws_section(spec)
    if not section or not has_all_types(spec) or not _is_storage_sold(spec):
        return None
    return (
        cost(spec) if all(section.region in machine.regions for machine in list_catalog_types(spec).values()) else None
    )


def _is_storage_sold(spec: ClusterSpec) -> bool:
    return all(storage.throughput in (None, *THROUGHPUTS) for storage in spec.storage.values())
