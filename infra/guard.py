"""The guard of changes: it refuses what the update policy forbids, and drains the nodes that will be removed."""

from __future__ import annotations

import sys

from pulumi.dynamic import CheckFailure, CheckResult, CreateResult, DiffResult, Resource, ResourceProvider, UpdateResult

from cluster.spec import ClusterSpec
from infra.resources.error import ResourceError
from infra.resources.force import is_forced
from infra.resources.job_queue import JobQueue
from infra.resources.properties import Properties
from infra.targets.registry import parse_spec, target_of
from infra.targets.target import Deployment
from infra.validate.update import affected, violations


class ChangeGuardProvider(ResourceProvider):
    """The provider of ChangeGuard. Inputs: spec (JSON), stack; its state holds the spec of the running cluster."""

    serialize_as_secret_always = False

    def check(self, olds: Properties, news: Properties) -> CheckResult:
        if "spec" not in olds:
            return CheckResult(news, [])
        old, new = _spec(olds), _spec(news)
        if old == new:
            return CheckResult(news, [])
        issues = violations(old, new, _queue(old, news["stack"]), force=is_forced())
        # The property is empty because Pulumi would show it next to the path in the spec, which is in the message.
        return CheckResult(news, [CheckFailure("", f"{i.where}: {i.message}. Fix: {i.fix}") for i in issues])

    def create(self, props: Properties) -> CreateResult:
        return CreateResult(f"guard-{props['stack']}", props)

    def diff(self, _id: str, olds: Properties, news: Properties) -> DiffResult:
        # Specs are compared, not their texts: the order of groups does not matter.
        return DiffResult(changes=_spec(olds) != _spec(news))

    def update(self, _id: str, olds: Properties, news: Properties) -> UpdateResult:
        old = _spec(olds)
        leaving = affected(old, _spec(news))
        if leaving:
            _drain(_queue(old, news["stack"]), leaving)
        return UpdateResult(news)


class ChangeGuard(Resource, module="muster", name="ChangeGuard"):
    """The resource on which every other one depends, so that a refused change changes nothing."""

    def __init__(self, name: str, *, spec: str, stack: str) -> None:
        super().__init__(ChangeGuardProvider(), name, {"spec": spec, "stack": stack})


def _drain(queue: JobQueue, nodes: tuple[str, ...]) -> None:
    """Drain nodes, then check again for jobs that started since the first check; with FORCE=1, requeue them."""
    try:
        drained = queue.drain(nodes)
        if is_forced():
            queue.requeue(nodes)
            return
    except ResourceError as problem:
        if not is_forced():
            raise
        print(f"warning: {problem}", file=sys.stderr)
        return
    jobs = queue.jobs(nodes)
    if jobs:
        _resume(queue, drained)
        running = "; ".join(f"{node}: {', '.join(ids)}" for node, ids in jobs.items())
        raise ResourceError(
            "groups",
            f"jobs have started on nodes that would be removed ({running})",
            "wait for them, or requeue them with `make up FORCE=1`",
        )


def _resume(queue: JobQueue, drained: tuple[str, ...]) -> None:
    """Resume the nodes that this change drained; only warn on failure, so that the actual error stays visible."""
    try:
        queue.resume(drained)
    except ResourceError as problem:
        print(f"warning: {', '.join(drained)} may still be drained: {problem}", file=sys.stderr)


def _queue(spec: ClusterSpec, stack: str) -> JobQueue:
    target = target_of(spec)
    return target.queue(Deployment(spec.name, stack, target.region(spec)))


def _spec(props: Properties) -> ClusterSpec:
    return parse_spec(props["spec"])
