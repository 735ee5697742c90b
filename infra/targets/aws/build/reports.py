"""Waits until nodes report that they are ready; fails with the step and log line of the first node that failed.

Running machines with another bundle set themselves up again through Systems Manager; none is replaced.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pulumi
from botocore.exceptions import ClientError
from pulumi.dynamic import CreateResult, DiffResult, ReadResult, Resource, ResourceProvider, UpdateResult

from bootstrap.progress import Event, emit
from cluster.names import CONTROLLER
from infra.resources.error import ResourceError
from infra.resources.properties import Properties, changed, unknown
from infra.targets.aws.build import absences
from infra.targets.aws.build.absences import Absences, describe_loss, find_absent
from infra.targets.aws.client import create_client
from infra.targets.aws.instances import list_instances
from infra.targets.aws.node import parameters
from infra.targets.aws.node.parameters import Report
from infra.targets.aws.node_reports import read_reports
from infra.targets.aws.send_command import Script, send_script

NodeState = Literal["ready", "coming", "stale"]
"""`stale`: the machine has to set itself up again: it failed, has another bundle, or its report is unreadable."""

LOG = "/var/log/muster/node.log"
# Longer than a controller needs that has to build Slurm first.
TIMEOUT_S = 3600.0
POLL_S = 3.0
# A terminated machine cannot report, so EC2 is asked as well, less often.
EC2_POLL_S = 30.0
# Limits of Systems Manager per call.
COMMAND_BATCH, PARAMETER_BATCH = 50, 10
# Not registered with Systems Manager yet, or not any more.
_ABSENT = "InvalidInstanceId"
_INPUTS = ("cluster", "region", "bundle", "nodes")


class NodeReportsProvider(ResourceProvider):
    """Pulumi provider that waits for reports; its inputs are NodeReportsArgs."""

    serialize_as_secret_always = False

    def create(self, props: Properties) -> CreateResult:
        return CreateResult(f"reported-{props['cluster']}-{min(props['nodes'])}", props | _wait(props))

    def update(self, _id: str, _olds: Properties, news: Properties) -> UpdateResult:
        return UpdateResult(news | _wait(news))

    def read(self, id_: str, props: Properties) -> ReadResult:
        reports = read_reports(create_client("ssm", props["region"]), props["cluster"])
        return ReadResult(id_, props | {"pending": _expected(props).unfinished(reports)})

    def diff(self, _id: str, olds: Properties, news: Properties) -> DiffResult:
        coming = unknown({key: news.get(key) for key in _INPUTS})
        return DiffResult(changes=bool(coming or changed(olds, news, _INPUTS) or olds.get("pending")))

    def delete(self, _id: str, props: Properties) -> None:
        """Delete the reports; with the controller also those of the nodes that it launched."""
        ssm, cluster = create_client("ssm", props["region"]), props["cluster"]
        nodes = list(read_reports(ssm, cluster) if CONTROLLER in props["nodes"] else props["nodes"])
        for batch in _batches([parameters.node(cluster, node) for node in nodes], PARAMETER_BATCH):
            ssm.delete_parameters(Names=batch)


@dataclass(frozen=True)
class NodeReportsArgs:
    """The nodes to wait for, and what they have to have applied."""

    cluster: str
    stack: str
    """Not among the inputs that are compared: a resource of an older version, without it, stays as it is."""
    region: str
    nodes: pulumi.Input[Mapping[str, str]]
    """Instance ids by node name; empty if any machine of that name is accepted."""
    bundle: pulumi.Input[str]
    """Digest of the bundle that they must have applied."""
    script: pulumi.Input[str]
    """User data, which a running machine executes to set itself up again."""


class NodeReports(Resource, module="muster", name="AwsReported"):
    """The reports of a set of nodes; exists once all of them are ready."""

    applied: pulumi.Output[str]
    """Changes whenever a node has set itself up again."""
    pending: pulumi.Output[list[str]]

    def __init__(self, name: str, args: NodeReportsArgs, opts: pulumi.ResourceOptions) -> None:
        super().__init__(NodeReportsProvider(), name, {**vars(args), "applied": None, "pending": None}, opts)


@dataclass(frozen=True)
class NodeFailure:
    """A node whose set-up failed, with its report."""

    node: str
    report: Report

    def __str__(self) -> str:
        return f"node {self.node} failed at {self.report.step}: {self.report.line.rstrip('.')}"


@dataclass(frozen=True)
class ExpectedNodes:
    """The nodes that have to be ready, and the bundle that they have to have."""

    nodes: Mapping[str, str]
    """Instance ids by node name; empty if any machine of that name is accepted."""
    bundle: str

    def state(self, node: str, report: Report | None) -> NodeState:
        """Return what a node's report means."""
        if report is None:
            return "coming"
        if report.state == "unreadable":
            return "stale"
        if self.nodes[node] not in ("", report.instance) or report.state == "working":
            return "coming"
        return "ready" if (report.state, report.bundle) == ("ready", self.bundle) else "stale"

    def unfinished(self, reports: Mapping[str, Report]) -> list[str]:
        """Return the nodes that are not ready."""
        return [node for node in self.nodes if self.state(node, reports.get(node)) != "ready"]

    def list_stale(self, reports: Mapping[str, Report]) -> list[str]:
        """Return the nodes whose machines have to set themselves up again."""
        return [node for node in self.nodes if self.state(node, reports.get(node)) == "stale"]

    def failures(self, before: Mapping[str, Report], now: Mapping[str, Report]) -> list[NodeFailure]:
        """Return the failures that were reported after `before` was read."""
        stale = [(node, now[node]) for node in self.nodes if self.state(node, now.get(node)) == "stale"]
        return [
            NodeFailure(node, report)
            for node, report in stale
            if report.state == "failed" and report != before.get(node)
        ]


def find_lost_machines(ec2: Any, instances: Mapping[str, str], *, are_listed: bool) -> dict[str, str]:
    """Return, by node, why machines will never report: terminated or stopped, with EC2's reason.

    `are_listed`: they were launched so long ago that one that EC2 does not list does not exist any more.
    """
    if not instances:
        return {}
    filters = [{"Name": "instance-id", "Values": sorted(instances.values())}]
    pages = ec2.get_paginator("describe_instances").paginate(Filters=filters)
    described = {
        instance["InstanceId"]: instance
        for page in pages
        for reservation in page["Reservations"]
        for instance in reservation["Instances"]
    }
    judged = {node: id_ for node, id_ in instances.items() if are_listed or id_ in described}
    losses = {node: describe_loss(id_, described.get(id_)) for node, id_ in judged.items()}
    return {node: text for node, text in losses.items() if text}


def _wait(props: Properties, timeout_s: float = TIMEOUT_S, poll_s: float = POLL_S) -> Properties:
    expected, ssm = _expected(props), create_client("ssm", props["region"])
    before = read_reports(ssm, props["cluster"])
    stale = _find_machines(props, expected, expected.list_stale(before))
    _set_up_again(props["region"], stale, props["script"])
    began = time.monotonic()
    deadline, ec2_poll = began + timeout_s, began + EC2_POLL_S
    shown: Mapping[str, Report] = {}
    gone = Absences(in_use_before=before)
    while True:
        reports = read_reports(ssm, props["cluster"])
        _show_progress(expected, shown, reports)
        shown = reports
        if failures := expected.failures(before, reports):
            raise _failure_problem(failures)
        unfinished = expected.unfinished(reports)
        if not unfinished:
            return {"applied": max((report.at for report in reports.values()), default=""), "pending": []}
        if time.monotonic() > ec2_poll:
            ec2_poll = time.monotonic() + EC2_POLL_S
            instances = {node: expected.nodes[node] for node in unfinished if expected.nodes[node]}
            _check_machines(props["region"], instances, are_listed=time.monotonic() > began + absences.LISTING_S)
            _check_names(props, [node for node in unfinished if not expected.nodes[node]], gone)
        if time.monotonic() > deadline:
            raise _timeout_problem(unfinished, reports, timeout_s)
        time.sleep(poll_s)


def _find_machines(props: Properties, expected: ExpectedNodes, nodes: Sequence[str]) -> dict[str, str]:
    """Return the instance ids of nodes: those that the engine launched, and by their tags those that Slurm launches.

    An id in a report is not used: a forged one would point the command at another machine.
    """
    if not nodes:
        return {}
    instances = list_instances(props["region"], props["cluster"], props["stack"])
    tagged = {instance.name: instance.id for instance in instances}
    ids = {node: expected.nodes[node] or tagged.get(node, "") for node in nodes}
    return {node: id_ for node, id_ in ids.items() if id_}


def _set_up_again(region: str, instances: Mapping[str, str], script: str) -> None:
    """Start the set-up on all machines at once; they report the result themselves."""
    for node in instances:
        emit(Event("bootstrap", node, "apply", "start", "sets itself up again"))
    for batch in _batches(sorted(set(instances.values())), COMMAND_BATCH):
        _start(region, batch, script)


def _start(region: str, instances: Sequence[str], script: str) -> None:
    try:
        send_script(region, instances, Script(script, TIMEOUT_S))
    except ClientError as error:
        if error.response["Error"]["Code"] != _ABSENT:
            raise
        # A single unknown instance fails the whole call. A machine that is gone needs no command: its report is
        # outdated, and the machine that has its name now reports itself.
        if len(instances) > 1:
            for instance in instances:
                _start(region, [instance], script)


def _show_progress(expected: ExpectedNodes, shown: Mapping[str, Report], reports: Mapping[str, Report]) -> None:
    for node in expected.nodes:
        report = reports.get(node)
        if report is None or report == shown.get(node):
            continue
        if report.state == "working":
            emit(Event("bootstrap", node, report.step, "start", report.line))
        elif expected.state(node, report) == "ready":
            emit(Event("bootstrap", node, report.step, "ok", "ready"))


def _failure_problem(failures: Sequence[NodeFailure]) -> ResourceError:
    first, *others = failures
    for failure in failures:
        emit(Event("bootstrap", failure.node, failure.report.step, "failed", failure.report.line))
    also = f" (failed as well: {', '.join(failure.node for failure in others)})" if others else ""
    fix = f"`muster ssh {first.node}` and read {LOG}; `muster up` retries it on the same machine"
    return ResourceError("", f"{first}{also}", fix)


def _check_machines(region: str, instances: Mapping[str, str], *, are_listed: bool) -> None:
    """Raise ResourceError if a machine will never report."""
    lost = find_lost_machines(create_client("ec2", region), instances, are_listed=are_listed)
    if not lost:
        return
    for node, reason in lost.items():
        emit(Event("bootstrap", node, "boot", "failed", reason))
    node, reason = next(iter(lost.items()))
    fix = "`muster up` replaces a terminated machine; start a stopped one with `aws ec2 start-instances`"
    raise ResourceError("", f"the machine of node {node} will not report: {reason}", fix)


def _check_names(props: Properties, nodes: Sequence[str], gone: Absences) -> None:
    """Raise ResourceError if a node that any machine may become will not get one."""
    absent = find_absent(props["region"], props["cluster"], props["stack"], nodes)
    given_up = gone.update(absent, time.monotonic())
    if not given_up:
        return
    for node in given_up:
        emit(Event("bootstrap", node, "boot", "failed", absent[node]))
    more = f", and {len(given_up) - 1} more" if len(given_up) > 1 else ""
    what = f"node {given_up[0]} has no machine: {absent[given_up[0]]}{more}"
    raise ResourceError("", what, "remove the cause, if EC2 names one; `muster up` launches it again")


def _timeout_problem(unfinished: Sequence[str], reports: Mapping[str, Report], timeout_s: float) -> ResourceError:
    node = unfinished[0]
    more = f", and {len(unfinished) - 1} more" if len(unfinished) > 1 else ""
    what = f"node {node} {_describe_progress(reports.get(node))} after {timeout_s / 60:.0f} minutes{more}"
    fix = f"`muster ssh {node}` and read {LOG}, or the machine's console; `muster up` waits again"
    return ResourceError("", what, fix)


def _describe_progress(report: Report | None) -> str:
    if report is None:
        return "has not reported yet"
    if report.state == "unreadable":
        return f"has an unreadable report ({report.line})"
    if report.state == "ready":
        return "ready, but as another machine or with another bundle"
    return f"{report.state} at {report.step}"


def _expected(props: Properties) -> ExpectedNodes:
    return ExpectedNodes(props["nodes"], props["bundle"])


def _batches(items: Sequence[str], size: int) -> Iterable[list[str]]:
    return (list(items[start : start + size]) for start in range(0, len(items), size))
