"""Waits until every node that always exists has said that it is ready; the first that failed is told, with its step.

Machines that run already are told to set themselves up again where they have another bundle: nothing is replaced."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pulumi
from botocore.exceptions import ClientError
from pulumi.dynamic import CreateResult, DiffResult, ReadResult, Resource, ResourceProvider, UpdateResult

from bootstrap.progress import Event, emit
from cluster.names import CONTROLLER
from infra.resources.problem import Problem
from infra.resources.properties import Properties, changed, unknown
from infra.targets.aws.build import reports
from infra.targets.aws.build.lost_machines import lost
from infra.targets.aws.build.reports import LOG, Wanted
from infra.targets.aws.client import client
from infra.targets.aws.node import parameters
from infra.targets.aws.node.parameters import Report

# Longer than a controller takes that has to build Slurm first.
PATIENCE_S = 3600.0
POLL_S = 3.0
# A machine that has ended says nothing any more: EC2 is asked, not as often as the reports.
LOOK_S = 30.0
# Systems Manager takes that many at once; it hands out parameters in pages of ten.
BATCH, PAGE = 50, 10
# Not known there yet, or not any more.
_ABSENT = "InvalidInstanceId"
_INPUTS = ("cluster", "region", "bundle", "nodes")


class ReportedProvider(ResourceProvider):
    """Inputs: ReportedArgs."""

    serialize_as_secret_always = False

    def create(self, props: Properties) -> CreateResult:
        return CreateResult(f"reported-{props['cluster']}-{min(props['nodes'])}", props | _wait(props))

    def update(self, _id: str, _olds: Properties, news: Properties) -> UpdateResult:
        return UpdateResult(news | _wait(news))

    def read(self, id_: str, props: Properties) -> ReadResult:
        said = _read(client("ssm", props["region"]), props["cluster"])
        return ReadResult(id_, props | {"pending": reports.unfinished(_wanted(props), said)})

    def diff(self, _id: str, olds: Properties, news: Properties) -> DiffResult:
        coming = unknown({key: news.get(key) for key in _INPUTS})
        return DiffResult(changes=bool(coming or changed(olds, news, _INPUTS) or olds.get("pending")))

    def delete(self, _id: str, props: Properties) -> None:
        """Nodes that came later go with the controller, which launched them."""
        ssm, cluster = client("ssm", props["region"]), props["cluster"]
        gone = _read(ssm, cluster) if CONTROLLER in props["nodes"] else props["nodes"]
        for batch in _batches([parameters.node(cluster, node) for node in gone], PAGE):
            ssm.delete_parameters(Names=batch)


@dataclass(frozen=True)
class ReportedArgs:
    cluster: str
    region: str
    nodes: pulumi.Input[Mapping[str, str]]
    """Instance by name of node; empty where any machine of that name will do."""
    bundle: pulumi.Input[str]
    """Digest of the bundle that they must have applied."""
    script: pulumi.Input[str]
    """User data: what a machine that runs already is told to do again."""


class Reported(Resource, module="muster", name="AwsReported"):
    applied: pulumi.Output[str]
    """Changes whenever a node has set itself up anew."""
    pending: pulumi.Output[list[str]]

    def __init__(self, name: str, args: ReportedArgs, opts: pulumi.ResourceOptions) -> None:
        super().__init__(ReportedProvider(), name, {**vars(args), "applied": None, "pending": None}, opts)


def _wait(props: Properties, patience_s: float = PATIENCE_S, poll_s: float = POLL_S) -> Properties:
    wanted, ssm = _wanted(props), client("ssm", props["region"])
    before = _read(ssm, props["cluster"])
    _tell_again(ssm, reports.stale(wanted, before), props["script"])
    deadline, shown = time.monotonic() + patience_s, dict[str, Report]()
    look = time.monotonic() + LOOK_S
    while True:
        said = _read(ssm, props["cluster"])
        _show(wanted, shown, said)
        shown = said
        if failed := reports.failures(wanted, before, said):
            raise _failed(failed)
        left = reports.unfinished(wanted, said)
        if not left:
            return {"applied": max((one.at for one in said.values()), default=""), "pending": []}
        if time.monotonic() > look:
            look = time.monotonic() + LOOK_S
            _look_for(props["region"], {node: wanted.nodes[node] for node in left if wanted.nodes[node]})
        if time.monotonic() > deadline:
            raise _late(left, said, patience_s)
        time.sleep(poll_s)


def _tell_again(ssm: Any, instances: Mapping[str, str], script: str) -> None:
    """All at once; what comes of it they report themselves."""
    for node in instances:
        emit(Event("bootstrap", node, "apply", "start", "sets itself up again"))
    for batch in _batches(sorted(set(instances.values())), BATCH):
        _send(ssm, batch, script)


def _send(ssm: Any, instances: Sequence[str], script: str) -> None:
    options = {"commands": [script], "executionTimeout": [str(int(PATIENCE_S))]}
    try:
        ssm.send_command(InstanceIds=instances, DocumentName="AWS-RunShellScript", Parameters=options)
    except ClientError as error:
        if error.response["Error"]["Code"] != _ABSENT:
            raise
        # One that is gone left its words behind; the machine that has its name now will speak for itself.
        if len(instances) > 1:
            for one in instances:
                _send(ssm, [one], script)


def _read(ssm: Any, cluster: str) -> dict[str, Report]:
    """By name of node."""
    pages = ssm.get_paginator("get_parameters_by_path").paginate(Path=parameters.nodes(cluster))
    found = (one for page in pages for one in page["Parameters"])
    return {one["Name"].rpartition("/")[2]: Report.model_validate_json(one["Value"]) for one in found}


def _show(wanted: Wanted, shown: Mapping[str, Report], said: Mapping[str, Report]) -> None:
    for node in wanted.nodes:
        report = said.get(node)
        if report is None or report == shown.get(node):
            continue
        if report.state == "working":
            emit(Event("bootstrap", node, report.step, "start", report.line))
        elif reports.verdict(wanted, node, report) == "ready":
            emit(Event("bootstrap", node, report.step, "ok", "ready"))


def _failed(failed: Sequence[reports.Failure]) -> Problem:
    first, *others = failed
    for one in failed:
        emit(Event("bootstrap", one.node, one.report.step, "failed", one.report.line))
    also = f" (failed as well: {', '.join(one.node for one in others)})" if others else ""
    fix = f"`muster ssh {first.node}` and read {LOG}; `muster up` tries it again on the same machine"
    return Problem("", f"{first}{also}", fix)


def _look_for(region: str, machines: Mapping[str, str]) -> None:
    gone = lost(client("ec2", region), machines)
    if not gone:
        return
    for node, what in gone.items():
        emit(Event("bootstrap", node, "boot", "failed", what))
    node, what = next(iter(gone.items()))
    fix = "`muster up` makes one that has ended anew; start one that is stopped with `aws ec2 start-instances`"
    raise Problem("", f"the machine of node {node} will not report: {what}", fix)


def _late(left: Sequence[str], said: Mapping[str, Report], patience_s: float) -> Problem:
    node = left[0]
    more = f", and {len(left) - 1} more" if len(left) > 1 else ""
    what = f"node {node} {reports.state_of(said.get(node))} after {patience_s / 60:.0f} minutes{more}"
    fix = f"`muster ssh {node}` and read {LOG}, or the machine's console; `muster up` waits again"
    return Problem("", what, fix)


def _wanted(props: Properties) -> Wanted:
    return Wanted(props["nodes"], props["bundle"])


def _batches(items: Sequence[str], size: int) -> Iterable[list[str]]:
    return (list(items[start : start + size]) for start in range(0, len(items), size))
