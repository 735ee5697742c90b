"""The AWS account behind the caller's credentials, and what it says of a cluster: pre-flight and budget."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

from cluster.spec import ClusterSpec, Issue
from cluster.spec.issue import render
from infra.engine.stop import Stop
from infra.resources.problem import Problem
from infra.targets.aws import credentials
from infra.targets.aws.quote import quote_by_aws, quote_by_table
from infra.targets.aws.spec import region_of
from infra.targets.aws.state import Made
from infra.targets.aws.validate.budget import BY_PRICE, affordable
from infra.targets.cost import Quote
from infra.targets.target import Console, Flight

if TYPE_CHECKING:
    from infra.targets.aws.preflight import Account, Found

NONE = "no AWS credentials found"


def find_account(spec: ClusterSpec) -> Account | None:
    """Return the account of the caller; None without credentials. AWS's libraries load only if there may be some."""
    if not credentials.likely(os.environ):
        return None
    from infra.targets.aws import preflight  # noqa: PLC0415  # loads AWS's libraries

    chosen = preflight.credentials(metadata=credentials.on_ec2())
    return preflight.Account(chosen, region_of(spec)) if chosen else None


def preflight(spec: ClusterSpec, issues: list[Issue], made: Made | None, console: Console) -> Flight | None:
    """Add the whole pre-flight to what the rules found; None without credentials. `made`: what the stack created."""
    account = find_account(spec)
    return None if account is None else _full(spec, issues, account, made, console)


def clear(spec: ClusterSpec, issues: list[Issue], made: Made | None, console: Console, *, full: bool) -> Flight:
    """Do the same before something is created: stop where AWS would not even say who is calling."""
    account = find_account(spec)
    if account is None and any(issue.level == "error" for issue in issues):
        return Flight(issues)
    if account is None:
        fix = "`aws sso login` or `aws configure`, or set AWS_PROFILE; `make check` and `make cost` work without"
        raise Stop(f"{NONE}; nothing was started", fix)
    if full:
        return _full(spec, issues, account, made, console, must_answer=True)
    answer = _ask(spec, account, made, console, must_answer=True, full=False)
    console.say("no pre-flight: quotas, zones, capacity, images, rights and today's prices are not checked")
    return Flight([*issues, *answer.issues])


def quote(spec: ClusterSpec, console: Console) -> Quote:
    """Return the cost by today's prices where an account can be asked, else by the dated table."""
    try:
        account = find_account(spec)
    except Problem as bad:
        return quote_by_table(spec, f"were not asked for: {bad}")
    return quote_by_aws(spec, account, console) if account else quote_by_table(spec, f"were not asked for: {NONE}")


def _full(  # noqa: PLR0913  # the pre-flight looks at all of it
    spec: ClusterSpec,
    issues: list[Issue],
    account: Account,
    made: Made | None,
    console: Console,
    *,
    must_answer: bool = False,
) -> Flight:
    answer = _ask(spec, account, made, console, must_answer=must_answer)
    if answer.identity is None:
        return Flight([*issues, *answer.issues])
    caller = f"account {answer.identity.account} as {answer.identity.arn}"
    console.say(f"asked {caller} in {account.region}, {answer.seconds:.1f} s; nothing was created")
    if spec.budget.usd_per_hour is None and spec.budget.usd_per_month is None:
        return Flight([*issues, *answer.issues])
    priced = quote_by_aws(spec, account, console)
    console.say(f"budget judged by {priced.source}")
    if priced.today:
        issues = [issue for issue in issues if issue.code not in BY_PRICE] + list(affordable(spec, priced.cost))
    return Flight([*issues, *answer.issues], priced)


def _ask(  # noqa: PLR0913  # as above
    spec: ClusterSpec,
    account: Account,
    made: Made | None,
    console: Console,
    *,
    must_answer: bool,
    full: bool = True,
) -> Found:
    from infra.targets.aws.preflight import Asking, preflight  # noqa: PLC0415  # loads AWS's libraries

    with console.status("asking AWS") as line:
        asking = Asking(tell=line.update, made_in=made.account if made else None)
        answer = preflight(spec, account, asking if full else replace(asking, checks=()))
    if must_answer and answer.identity is None:
        raise Stop(f"AWS was not reached; nothing was started\n{render(answer.issues)}")
    return answer
