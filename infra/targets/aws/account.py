"""The AWS account behind the credentials of whoever types, and what it says of a cluster: pre-flight and budget."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from cluster.spec import ClusterSpec
from infra.engine.stop import Stop
from infra.targets.aws import credentials
from infra.targets.aws.priced import Priced, by_aws
from infra.targets.aws.state import Made
from infra.targets.aws.validate.budget import BY_PRICE, affordable
from infra.validate import Issue, render
from muster.commands import screen

if TYPE_CHECKING:
    from infra.targets.aws.preflight import Account, Found

NONE = "no AWS credentials found"


def account(spec: ClusterSpec) -> Account | None:
    """None where there are no credentials; loads AWS's libraries only where there may be some."""
    if not credentials.likely(os.environ):
        return None
    from infra.targets.aws import preflight  # noqa: PLC0415  # loads AWS's libraries

    found = preflight.credentials(metadata=credentials.on_ec2())
    return preflight.Account(found, spec.aws.region if spec.aws else "") if found else None


@dataclass(frozen=True)
class Flight:
    """What speaks against a cluster once its account was asked."""

    issues: list[Issue]
    priced: Priced | None = None
    """What its budget was judged by; None where it has none, or nobody was asked."""

    @property
    def by_todays_prices(self) -> bool:
        return self.priced is not None and self.priced.today


def looked_at(spec: ClusterSpec, issues: list[Issue], made: Made | None = None) -> Flight | None:
    """The whole pre-flight added to what the rules found; None where there are no credentials. `made`: what the stack
    has made already."""
    found = account(spec)
    return None if found is None else _whole(spec, issues, found, made)


def cleared(spec: ClusterSpec, issues: list[Issue], made: Made | None = None, *, preflight: bool) -> Flight:
    """The same before something is made: stops where AWS would not even say who is asking."""
    found = account(spec)
    if found is None and any(issue.level == "error" for issue in issues):
        return Flight(issues)
    if found is None:
        fix = "`aws sso login` or `aws configure`, or set AWS_PROFILE; `make check` and `make cost` work without"
        raise Stop(f"{NONE}; nothing was started", fix)
    if preflight:
        return _whole(spec, issues, found, made, must_answer=True)
    done = _asked(spec, found, made, must_answer=True, whole=False)
    screen.say("no pre-flight: quotas, zones, capacity, images, rights and today's prices are not checked")
    return Flight([*issues, *done.issues])


def _whole(
    spec: ClusterSpec, issues: list[Issue], found: Account, made: Made | None, *, must_answer: bool = False
) -> Flight:
    done = _asked(spec, found, made, must_answer=must_answer)
    if done.identity is None:
        return Flight([*issues, *done.issues])
    who = f"account {done.identity.account} as {done.identity.arn}"
    screen.say(f"asked {who} in {found.region}, {done.seconds:.1f} s; nothing was created")
    if spec.budget.usd_per_hour is None and spec.budget.usd_per_month is None:
        return Flight([*issues, *done.issues])
    priced = by_aws(spec, found)
    screen.say(f"budget judged by {priced.source}")
    if priced.today:
        issues = [issue for issue in issues if issue.code not in BY_PRICE] + list(affordable(spec, priced.cost))
    return Flight([*issues, *done.issues], priced)


def _asked(spec: ClusterSpec, found: Account, made: Made | None, *, must_answer: bool, whole: bool = True) -> Found:
    from infra.targets.aws.preflight import Asking, preflight  # noqa: PLC0415  # loads AWS's libraries

    with screen.out().status("asking AWS") as line:
        asking = Asking(tell=line.update, made_in=made.account if made else None)
        done = preflight(spec, found, asking if whole else replace(asking, checks=()))
    if must_answer and done.identity is None:
        raise Stop(f"AWS was not reached; nothing was started\n{render(done.issues)}")
    return done
