"""The AWS account that the caller's credentials belong to, and what it adds to the checks and the cost of a cluster."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from cluster.spec import ClusterSpec, Issue
from cluster.spec.issue import render
from infra.engine.stop import Stop
from infra.resources.error import ResourceError
from infra.targets.aws import credentials
from infra.targets.aws.cluster_end import describe_end
from infra.targets.aws.quote import quote_by_aws, quote_by_table
from infra.targets.aws.spec import aws_section, region_of
from infra.targets.aws.state import StateRecord
from infra.targets.aws.validate.budget import BY_PRICE, check_budget
from infra.targets.cost import Quote
from infra.targets.mixins import Flight
from infra.targets.target import Console

if TYPE_CHECKING:
    from infra.targets.aws.preflight import Account, PreflightResult

NO_CREDENTIALS = "no AWS credentials found"


def find_account(spec: ClusterSpec) -> Account | None:
    """Return the caller's account; None without credentials, and then AWS's libraries are not even loaded."""
    if not credentials.may_exist(os.environ):
        return None
    from infra.targets.aws import preflight  # noqa: PLC0415  # loads AWS's libraries

    session = preflight.load_session(metadata=credentials.is_on_ec2())
    return preflight.Account(session, region_of(spec)) if session else None


def check_with_account(
    spec: ClusterSpec, issues: list[Issue], record: StateRecord | None, console: Console
) -> Flight | None:
    """Add the issues of the whole pre-flight to those of the rules; return None without credentials.

    `record` is what the stack's state says about the cluster; None if it has created nothing.
    """
    account = find_account(spec)
    if account is None:
        return None
    result = _run_preflight(spec, account, record, console, must_answer=False)
    return _judge_flight(spec, issues, account, result, console)


def clear_for_creation(  # noqa: PLR0913  # the pre-flight needs all of it
    spec: ClusterSpec,
    issues: list[Issue],
    record: StateRecord | None,
    console: Console,
    *,
    full: bool,
    store_fallbacks: Callable[[Mapping[str, str]], None] = lambda _images: None,
) -> Flight:
    """Run the pre-flight before resources are created; raise Stop if AWS does not confirm who is calling.

    `store_fallbacks` gets the images that it chose for a new cluster: without a pre-flight none, and those that an
    earlier `up` chose before it failed are forgotten.
    """
    account = find_account(spec)
    if account is None and any(issue.level == "error" for issue in issues):
        return Flight(issues)
    if account is None:
        fix = "`aws sso login` or `aws configure`, or set AWS_PROFILE; `make check` and `make cost` work without"
        raise Stop(f"{NO_CREDENTIALS}; nothing was started", fix)
    if full:
        result = _run_preflight(spec, account, record, console, must_answer=True)
        flight = _judge_flight(spec, issues, account, result, console)
        # A cluster that exists stays with its images.
        if record is None and not any(issue.level == "error" for issue in flight.issues):
            store_fallbacks(result.fallbacks)
        return flight
    result = _run_preflight(spec, account, record, console, must_answer=True, full=False)
    console.say("no pre-flight: quotas, zones, capacity, images, permissions and today's prices are not checked")
    if record is None and not any(issue.level == "error" for issue in [*issues, *result.issues]):
        store_fallbacks({})
    return Flight([*issues, *result.issues])


def quote_cost(spec: ClusterSpec, console: Console) -> Quote:
    """Return the cost by today's prices if there are credentials, otherwise by the dated table."""
    try:
        account = find_account(spec)
    except ResourceError as problem:
        return quote_by_table(spec, f"were not queried: {problem}")
    if account is None:
        return quote_by_table(spec, f"were not queried: {NO_CREDENTIALS}")
    return quote_by_aws(spec, account, console)


def _judge_flight(
    spec: ClusterSpec, issues: list[Issue], account: Account, result: PreflightResult, console: Console
) -> Flight:
    """Add the issues of a pre-flight, and those of a budget by today's prices, to those of the rules."""
    if result.identity is None:
        return Flight([*issues, *result.issues])
    caller = f"account {result.identity.account} as {result.identity.arn}"
    console.say(f"checked {caller} in {account.region}, {result.seconds:.1f} s; nothing was created")
    if spec.budget.usd_per_hour is None and spec.budget.usd_per_month is None:
        return Flight([*issues, *result.issues])
    quote = quote_by_aws(spec, account, console)
    console.say(f"budget checked against {quote.source}")
    if quote.today:
        issues = [issue for issue in issues if issue.code not in BY_PRICE] + list(check_budget(spec, quote.cost))
    return Flight([*issues, *result.issues], quote)


def _run_preflight(  # noqa: PLR0913  # the pre-flight needs all of it
    spec: ClusterSpec,
    account: Account,
    record: StateRecord | None,
    console: Console,
    *,
    must_answer: bool,
    full: bool = True,
) -> PreflightResult:
    from infra.targets.aws.preflight import PreflightOptions, run_preflight  # noqa: PLC0415  # loads AWS's libraries

    with console.status("asking AWS") as line:
        options = PreflightOptions(report=line.update, existing_account=record.account if record else None)
        result = run_preflight(spec, account, options if full else replace(options, checks=()))
    if must_answer and result.identity is None:
        raise Stop(f"AWS was not reached; nothing was started\n{render(result.issues)}")
    section = aws_section(spec)
    if end := describe_end(section, datetime.now(UTC)) if section else "":
        console.say(end)
    return result
