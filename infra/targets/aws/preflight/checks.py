"""The checks of the pre-flight, which run in parallel and stop at a deadline."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from botocore.exceptions import BotoCoreError, ClientError

from cluster.spec import ClusterSpec
from cluster.spec.issue import Issue, warning
from infra.targets.aws.launcher.errors import classify_error
from infra.targets.aws.preflight import (
    cluster_end,
    existing_network,
    existing_storage,
    images,
    launches,
    lustre_clients,
    lustre_key,
    offerings,
    ownership,
    permissions,
    policies_and_hooks,
    quotas,
    reservations,
)
from infra.targets.aws.preflight.account import Account, Identity
from infra.targets.aws.preflight.subject import RunningInstance, Subject, list_running_instances

DEADLINE_S = 18.0


@dataclass(frozen=True)
class Check:
    """A check of the spec against the account, which yields issues."""

    what: str
    where: str
    """Property of the spec that is named if AWS does not answer."""
    run: Callable[[Subject], Iterable[Issue]]


CHECKS: tuple[Check, ...] = (
    Check("the name", "name", ownership.check_name),
    Check("the end", "aws.ends_at", cluster_end.check_end),
    Check("vCPU quotas", "groups", quotas.check_vcpus),
    Check("network quotas", "network", quotas.check_networks),
    Check("zones", "aws.zones", offerings.check_zones),
    Check("reservations", "groups", reservations.check_reservations),
    Check("the VPC", "network.vpc_id", existing_network.check_network),
    Check("filesystems", "storage", existing_storage.check_filesystems),
    Check("buckets", "storage", existing_storage.check_buckets),
    Check("images", "aws.ami", images.check_images),
    Check("Lustre clients", "storage", lustre_clients.check_lustre_clients),
    Check("the key of the Lustre client", "storage", lustre_key.check_lustre_key),
    Check("key and boundary", "aws", permissions.check_key_and_boundary),
    Check("policies", "aws.policies", policies_and_hooks.check_policies),
    Check("hooks", "aws.hooks", policies_and_hooks.check_hooks),
    Check("rights", "aws", permissions.check_permissions),
    Check("launches", "groups", launches.check_launches),
)


@dataclass(frozen=True)
class PreflightResult:
    """The issues of a pre-flight, and who ran it."""

    identity: Identity | None
    """None if AWS did not confirm the caller."""
    issues: tuple[Issue, ...]
    seconds: float
    fallbacks: Mapping[str, str] = field(default_factory=dict)
    """Images by kind from which a new cluster starts instead of AWS's newest."""


@dataclass(frozen=True)
class PreflightOptions:
    """The checks to run, for how long, and where to report progress."""

    deadline_s: float = DEADLINE_S
    checks: tuple[Check, ...] = CHECKS
    report: Callable[[str], None] = lambda _: None
    existing_account: str | None = None
    """The account of the stack's cluster: empty if the state does not name it, None if there is no cluster yet."""


def run_preflight(spec: ClusterSpec, account: Account, options: PreflightOptions) -> PreflightResult:
    """Run the checks, which only read and simulate, and return their issues."""
    started = time.monotonic()
    options.report(f"asking AWS in {account.region}: who am I")
    try:
        identity = account.identity()
    except (ClientError, BotoCoreError) as failure:
        return PreflightResult(None, tuple(account.explain_failure(failure)), time.monotonic() - started)
    if mismatch := tuple(ownership.check_same_account(identity, options.existing_account or "")):
        return PreflightResult(identity, mismatch, time.monotonic() - started)
    running, unlisted = _list_running(account, spec.name)
    subject = Subject(spec, account, identity, running, exists=options.existing_account is not None)
    issues = (*unlisted, *_run_checks(subject, options, started + options.deadline_s))
    return PreflightResult(identity, issues, time.monotonic() - started, dict(subject.fallbacks))


def _list_running(account: Account, cluster: str) -> tuple[tuple[RunningInstance, ...], list[Issue]]:
    """Return the running instances; if AWS does not list them, none and a warning: quotas then count them again."""
    try:
        return tuple(list_running_instances(account.client("ec2"), cluster)), []
    except (ClientError, BotoCoreError) as failure:
        return (), [_report_failure("what the cluster already uses", "groups", failure)]


def _run_checks(subject: Subject, options: PreflightOptions, deadline: float) -> Iterator[Issue]:
    """Yield issues in the order of the checks; threads that still wait for AWS end with the process."""
    results: queue.Queue[tuple[Check, list[Issue]]] = queue.Queue()
    for check in options.checks:
        threading.Thread(
            target=lambda task: results.put((task, _run_check(task, subject))), args=(check,), daemon=True
        ).start()
    issues_by_check: dict[Check, list[Issue]] = {}
    while len(issues_by_check) < len(options.checks):
        pending = [check for check in options.checks if check not in issues_by_check]
        options.report(f"asking AWS in {subject.region}: {', '.join(check.what for check in pending)}")
        try:
            check, issues = results.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            issues_by_check |= {check: [_report_late(check, options.deadline_s)] for check in pending}
        else:
            issues_by_check[check] = issues
    return iter([issue for check in options.checks for issue in issues_by_check[check]])


def _run_check(check: Check, subject: Subject) -> list[Issue]:
    """Return the issues of a check, including those before a call failed."""
    issues: list[Issue] = []
    try:
        for issue in check.run(subject):
            issues.append(issue)  # noqa: PERF402  # list() would lose the issues before a failure
    except (ClientError, BotoCoreError) as failure:
        issues.append(_report_failure(check.what, check.where, failure))
    except (LookupError, TypeError, ValueError) as failure:
        message = f"{check.what} could not be checked (unexpected response from AWS: {failure!r})"
        issues.append(warning("not_judged", check.where, message, "check it yourself, and report a bug"))
    return issues


def _report_failure(what: str, where: str, failure: ClientError | BotoCoreError) -> Issue:
    """Return a warning with the error code only: AWS's messages contain the whole encoded request."""
    fault = classify_error(failure)
    call = f"{failure.operation_name}: " if isinstance(failure, ClientError) else ""
    fix = _FIXES.get(fault.kind, "check it yourself; `make up` may fail on it")
    if fault.code == _NOT_SIMULATED:
        fix = "not simulated; it is checked in an account"
    return warning("not_judged", where, f"{what} could not be checked ({call}{fault.code})", fix)


_NOT_SIMULATED = "NotImplemented"
"""Code with which the simulated AWS refuses calls that it lacks; AWS itself offers every call of the checks."""

_FIXES: dict[str, str] = {
    "permission": "allow the caller to make this call, or check it yourself",
    "throttle": "run it again in a minute",
}


def _report_late(check: Check, seconds: float) -> Issue:
    message = f"{check.what} could not be checked (no answer within {seconds:.0f} s)"
    return warning("not_judged", check.where, message, "run it again; check the network if this persists")
