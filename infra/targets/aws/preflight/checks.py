"""The checks of the pre-flight, asked all at once and for no longer than a person waits."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from botocore.exceptions import BotoCoreError, ClientError

from cluster.spec import ClusterSpec
from cluster.spec.issue import Issue, warning
from infra.targets.aws.launcher.errors import classify_error
from infra.targets.aws.preflight import (
    existing_network,
    existing_storage,
    images,
    launches,
    offerings,
    ownership,
    permissions,
    quotas,
    reservations,
)
from infra.targets.aws.preflight.account import Account, Identity
from infra.targets.aws.preflight.subject import Running, Subject, running

DEADLINE_S = 18.0


@dataclass(frozen=True)
class Check:
    what: str
    where: str
    """The property it is about, where no answer comes."""
    run: Callable[[Subject], Iterable[Issue]]


CHECKS: tuple[Check, ...] = (
    Check("the name", "name", ownership.name_is_free),
    Check("vCPU quotas", "groups", quotas.vcpus),
    Check("network quotas", "network", quotas.networks),
    Check("zones", "aws.zones", offerings.offered),
    Check("reservations", "groups", reservations.fitting),
    Check("the VPC", "network.vpc_id", existing_network.usable),
    Check("filesystems", "storage", existing_storage.filesystems),
    Check("buckets", "storage", existing_storage.buckets),
    Check("images", "aws.ami", images.fitting),
    Check("key and boundary", "aws", permissions.given),
    Check("rights", "aws", permissions.allowed),
    Check("launches", "groups", launches.possible),
)


@dataclass(frozen=True)
class Found:
    identity: Identity | None
    """Who asked; None where AWS did not say."""
    issues: tuple[Issue, ...]
    seconds: float


@dataclass(frozen=True)
class Asking:
    """How long, what, and who is told what is still open."""

    deadline_s: float = DEADLINE_S
    checks: tuple[Check, ...] = CHECKS
    tell: Callable[[str], None] = lambda _: None
    made_in: str | None = None
    """The account that this stack's cluster is in, empty where nobody wrote it down; None where there is none yet."""


def preflight(spec: ClusterSpec, account: Account, asking: Asking) -> Found:
    """Reads and simulates; creates nothing."""
    began = time.monotonic()
    asking.tell(f"asking AWS in {account.region}: who am I")
    try:
        identity = account.identity()
    except (ClientError, BotoCoreError) as failure:
        return Found(None, tuple(account.why_not(failure)), time.monotonic() - began)
    if other := tuple(ownership.same_account(identity, asking.made_in or "")):
        return Found(identity, other, time.monotonic() - began)
    subject = Subject(spec, account, identity, _running(account, spec.name), made=asking.made_in is not None)
    issues = tuple(_all_at_once(subject, asking, began + asking.deadline_s))
    return Found(identity, issues, time.monotonic() - began)


def _running(account: Account, cluster: str) -> tuple[Running, ...]:
    """Of a cluster that is up, what it holds; whoever may not look takes it for new, and finds too little room."""
    try:
        return tuple(running(account.client("ec2"), cluster))
    except (ClientError, BotoCoreError):
        return ()


def _all_at_once(subject: Subject, asking: Asking, deadline: float) -> Iterator[Issue]:
    """In the order of the table. Threads that AWS leaves waiting die with the process."""
    answers: queue.Queue[tuple[Check, list[Issue]]] = queue.Queue()
    for check in asking.checks:
        threading.Thread(
            target=lambda one: answers.put((one, _asked(one, subject))), args=(check,), daemon=True
        ).start()
    found: dict[Check, list[Issue]] = {}
    while len(found) < len(asking.checks):
        still = [check for check in asking.checks if check not in found]
        asking.tell(f"asking AWS in {subject.region}: {', '.join(check.what for check in still)}")
        try:
            check, issues = answers.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            found |= {check: [_late(check, asking.deadline_s)] for check in still}
        else:
            found[check] = issues
    return iter([issue for check in asking.checks for issue in found[check]])


def _asked(check: Check, subject: Subject) -> list[Issue]:
    """What was found before a call failed stays found."""
    found: list[Issue] = []
    try:
        for issue in check.run(subject):
            found.append(issue)  # noqa: PERF402  # a list made at once would lose them
    except (ClientError, BotoCoreError) as failure:
        found.append(_not_judged(check, failure))
    except (LookupError, TypeError, ValueError) as odd:
        message = f"{check.what} could not be judged (an answer of AWS in another shape: {odd!r})"
        found.append(warning("not_judged", check.where, message, "look it up yourself, and tell us"))
    return found


def _not_judged(check: Check, failure: ClientError | BotoCoreError) -> Issue:
    """The code alone: messages of AWS carry the whole request, encoded."""
    fault = classify_error(failure)
    call = f"{failure.operation_name}: " if isinstance(failure, ClientError) else ""
    fix = _FIXES.get(fault.kind, "look it up yourself; `make up` may fail on it")
    return warning("not_judged", check.where, f"{check.what} could not be judged ({call}{fault.code})", fix)


_FIXES: dict[str, str] = {
    "permission": "allow that call to whoever runs this, or look it up yourself",
    "throttle": "run it again in a minute",
}


def _late(check: Check, seconds: float) -> Issue:
    message = f"{check.what} could not be judged (no answer within {seconds:.0f} s)"
    return warning("not_judged", check.where, message, "run it again; look at the network if it stays so")
