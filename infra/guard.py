"""Stands before every change: refuses what the update policy forbids, and empties the nodes that will go."""

from __future__ import annotations

import os
import sys

from pulumi.dynamic import CheckFailure, CheckResult, CreateResult, DiffResult, Resource, ResourceProvider, UpdateResult

from cluster.spec import ClusterSpec
from infra.resources.job_queue import JobQueue
from infra.resources.problem import Problem
from infra.resources.properties import Properties
from infra.targets.registry import parse_spec, target_of
from infra.targets.target import Deployment
from infra.validate.update import affected, violations

FORCE = "MUSTER_FORCE"


class ChangeGuardProvider(ResourceProvider):
    """Inputs: spec (JSON), stack. The spec it holds is the one that the running cluster was made from."""

    serialize_as_secret_always = False

    def check(self, olds: Properties, news: Properties) -> CheckResult:
        if "spec" not in olds:
            return CheckResult(news, [])
        old, new = _spec(olds), _spec(news)
        if old == new:
            return CheckResult(news, [])
        found = violations(old, new, _queue(old, news["stack"]), force=_forced())
        # No property: ours are paths in the spec, not inputs of this resource, and Pulumi would show both.
        return CheckResult(news, [CheckFailure("", f"{i.where}: {i.message}. Fix: {i.fix}") for i in found])

    def create(self, props: Properties) -> CreateResult:
        return CreateResult(f"guard-{props['stack']}", props)

    def diff(self, _id: str, olds: Properties, news: Properties) -> DiffResult:
        # Compared as specs: another order of the groups is no change.
        return DiffResult(changes=_spec(olds) != _spec(news))

    def update(self, _id: str, olds: Properties, news: Properties) -> UpdateResult:
        old = _spec(olds)
        leaving = affected(old, _spec(news))
        if leaving:
            _empty(_queue(old, news["stack"]), leaving)
        return UpdateResult(news)


class ChangeGuard(Resource, module="muster", name="ChangeGuard"):
    """Every other resource depends on it."""

    def __init__(self, name: str, *, spec: str, stack: str) -> None:
        super().__init__(ChangeGuardProvider(), name, {"spec": spec, "stack": stack})


def _empty(queue: JobQueue, nodes: tuple[str, ...]) -> None:
    """A job may have started since the check: drained nodes take no new ones, so this second look is final."""
    try:
        drained = queue.drain(nodes)
        if _forced():
            queue.requeue(nodes)
            return
    except Problem as problem:
        if not _forced():
            raise
        print(f"warning: {problem}", file=sys.stderr)
        return
    jobs = queue.jobs(nodes)
    if jobs:
        _resume(queue, drained)
        running = "; ".join(f"{node}: {', '.join(ids)}" for node, ids in jobs.items())
        raise Problem(
            "groups",
            f"jobs started on nodes that would go ({running})",
            "wait for them, or give the jobs back to the queue with `make up FORCE=1`",
        )


def _resume(queue: JobQueue, drained: tuple[str, ...]) -> None:
    """Only what was drained for this: a node that an admin had drained before stays so. Never hides why we stop."""
    try:
        queue.resume(drained)
    except Problem as problem:
        print(f"warning: {', '.join(drained)} may still be drained: {problem}", file=sys.stderr)


def _queue(spec: ClusterSpec, stack: str) -> JobQueue:
    target = target_of(spec)
    return target.queue(Deployment(spec.name, stack, target.region(spec)))


def _spec(props: Properties) -> ClusterSpec:
    return parse_spec(props["spec"])


def _forced() -> bool:
    return os.environ.get(FORCE) == "1"
