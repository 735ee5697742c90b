"""Waiting for node reports: old reports do not count, and errors name the node, the step and the log."""

from __future__ import annotations

import json

import pytest

from cluster import names
from infra.resources.error import ResourceError
from infra.targets.aws.build import absences, reports
from infra.targets.aws.build.absences import Absences
from infra.targets.aws.build.reports import ExpectedNodes, NodeReportsProvider
from infra.targets.aws.node import parameters
from infra.targets.aws.node.parameters import Report, parse_report
from tests.moto_server import REGION, Moto

EXPECTED = ExpectedNodes({"controller": "i-1", "gpu-1": ""}, "new")
READY = Report(instance="i-1", state="ready", bundle="new", at="2026-01-01T00:00:00Z")
FAILED = Report(instance="i-1", state="failed", bundle="new", step="mounts", line="fs does not answer", at="t1")


@pytest.mark.parametrize(
    ("report", "expected"),
    [
        (None, "coming"),
        (READY, "ready"),
        (READY.model_copy(update={"instance": "i-0"}), "coming"),
        (READY.model_copy(update={"bundle": "old"}), "stale"),
        (FAILED, "stale"),
        (FAILED.model_copy(update={"instance": "i-0"}), "coming"),
        (READY.model_copy(update={"state": "working"}), "coming"),
        (parse_report("no report"), "stale"),
    ],
)
def test_state_of_a_node_by_its_report(report: Report | None, expected: str) -> None:
    assert EXPECTED.state("controller", report) == expected


def test_a_node_without_an_instance_accepts_any_instance() -> None:
    assert EXPECTED.state("gpu-1", READY.model_copy(update={"instance": "i-77"})) == "ready"


def test_an_old_failure_is_ignored() -> None:
    again = FAILED.model_copy(update={"at": "t2"})
    assert EXPECTED.failures({"controller": FAILED}, {"controller": FAILED}) == []
    assert [str(failure) for failure in EXPECTED.failures({"controller": FAILED}, {"controller": again})] == [
        "node controller failed at mounts: fs does not answer"
    ]


@pytest.fixture
def props(aws: Moto) -> dict[str, object]:
    nodes = {"controller": "i-1", "gpu-1": ""}
    cluster = {"cluster": "toy", "stack": "toy-stack", "region": REGION}
    return {**cluster, "nodes": nodes, "bundle": "new", "script": "#!/bin/sh\ntrue\n"}


def put_report(aws: Moto, node: str, report: Report) -> None:
    ssm = aws.client("ssm")
    ssm.put_parameter(Name=parameters.node("toy", node), Value=report.model_dump_json(), Type="String", Overwrite=True)


def test_reports_of_ready_nodes_are_deleted_with_the_cluster(aws: Moto, props: dict[str, object]) -> None:
    for node in ("controller", "gpu-1", "gpu-2"):
        put_report(aws, node, READY)
    created = NodeReportsProvider().create(props)
    assert created.outs["applied"] == READY.at
    assert aws.of("SendCommand") == []
    assert NodeReportsProvider().read("id", dict(created.outs)).outs["pending"] == []
    NodeReportsProvider().delete("id", dict(created.outs))
    assert aws.client("ssm").get_parameters_by_path(Path=parameters.nodes("toy"))["Parameters"] == []


def test_a_node_with_an_old_bundle_is_set_up_again(aws: Moto, props: dict[str, object]) -> None:
    instance = _start_instance(aws, "gpu-1")
    old = READY.model_copy(update={"bundle": "old", "instance": instance})
    put_report(aws, "gpu-1", old)
    put_report(aws, "controller", READY)
    aws.when_done("SendCommand", lambda: put_report(aws, "gpu-1", old.model_copy(update={"bundle": "new"})))
    NodeReportsProvider().create(props)
    (sent,) = aws.of("SendCommand")
    assert f'"InstanceIds": ["{instance}"]' in sent.params["body"]


def test_a_machine_of_another_stack_gets_no_command(aws: Moto, props: dict[str, object]) -> None:
    """Its cluster and node have the same names, for example in another VPC."""
    _start_instance(aws, "gpu-1", "other-stack")
    put_report(aws, "gpu-1", READY.model_copy(update={"bundle": "old"}))
    put_report(aws, "controller", READY)
    with pytest.raises(ResourceError, match="node gpu-1"):
        reports._wait(props, timeout_s=0, poll_s=0)
    assert aws.of("SendCommand") == []


def test_a_failed_node_error_names_step_message_and_log(aws: Moto, props: dict[str, object]) -> None:
    instance = _start_instance(aws)
    failed_report = FAILED.model_copy(update={"instance": instance})
    put_report(aws, "controller", failed_report)
    put_report(aws, "gpu-1", READY)
    aws.when_done("SendCommand", lambda: put_report(aws, "controller", failed_report.model_copy(update={"at": "t2"})))
    with pytest.raises(ResourceError) as caught:
        NodeReportsProvider().create(props | {"nodes": {"controller": instance, "gpu-1": ""}})
    message = str(caught.value)
    assert "node controller failed at mounts: fs does not answer. Fix: `muster ssh controller`" in message
    assert "/var/log/muster/node.log" in message


def test_a_missing_instance_does_not_stop_the_others(aws: Moto) -> None:
    """Systems Manager rejects the whole command if one instance does not exist."""
    aws.interfere = lambda _, action, params: (
        "InvalidInstanceId" if action == "SendCommand" and "i-gone" in params["body"] else ""
    )
    reports._set_up_again(REGION, {"controller": "i-1", "gpu-1": "i-gone", "gpu-2": "i-2"}, "true")
    sent = [json.loads(call.params["body"])["InstanceIds"] for call in aws.of("SendCommand") if call.status == 200]
    assert sent == [["i-1"], ["i-2"]]


def test_only_reports_of_removed_nodes_are_deleted(aws: Moto, props: dict[str, object]) -> None:
    for node in ("controller", "login", "gpu-1"):
        put_report(aws, node, READY)
    NodeReportsProvider().delete("id", props | {"nodes": {"login": "i-1"}})
    left = aws.client("ssm").get_parameters_by_path(Path=parameters.nodes("toy"))["Parameters"]
    assert sorted(parameter["Name"] for parameter in left) == [
        "/muster/toy/nodes/controller",
        "/muster/toy/nodes/gpu-1",
    ]


def test_waiting_times_out_with_the_state_of_the_node(aws: Moto, props: dict[str, object]) -> None:
    put_report(aws, "controller", READY.model_copy(update={"state": "working", "step": "slurm"}))
    with pytest.raises(ResourceError, match="node controller working at slurm after 0 minutes, and 1 more"):
        reports._wait(props, timeout_s=0, poll_s=0)


def test_a_terminated_instance_fails_at_once(
    aws: Moto, props: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An instance ends at once if, for example, its disk cannot be decrypted."""
    monkeypatch.setattr(reports, "EC2_POLL_S", 0.0)
    instance = _start_instance(aws)
    nodes = {"controller": instance, "gpu-1": ""}
    with pytest.raises(ResourceError, match="after 0 minutes"):
        reports._wait(props | {"nodes": nodes}, timeout_s=0, poll_s=0)
    aws.client("ec2").terminate_instances(InstanceIds=[instance])
    with pytest.raises(ResourceError) as caught:
        reports._wait(props | {"nodes": nodes}, poll_s=0)
    reason = "Client.UserInitiatedShutdown: User initiated shutdown"
    assert f"the machine of node controller will not report: {instance} is terminated ({reason})" in str(caught.value)


def test_an_instance_that_is_not_listed_is_lost_only_after_a_while(
    aws: Moto, props: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """EC2 lists a new instance only some time after its launch."""
    monkeypatch.setattr(reports, "EC2_POLL_S", 0.0)
    new = props | {"nodes": {"controller": "i-0123456789abcdef0"}}
    with pytest.raises(ResourceError, match="node controller has not reported yet after 0 minutes"):
        reports._wait(new, timeout_s=0, poll_s=0)
    monkeypatch.setattr(absences, "LISTING_S", 0.0)
    with pytest.raises(ResourceError, match="i-0123456789abcdef0 does not exist any more"):
        reports._wait(new, poll_s=0)


def test_a_static_node_whose_machine_ended_before_it_reported_is_not_waited_for(
    aws: Moto, props: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sweep launches no node that has never been up: all others would wait for it, at the price of their GPUs."""
    monkeypatch.setattr(reports, "EC2_POLL_S", 0.0)
    static = props | {"nodes": {"gpu-1": ""}}
    with pytest.raises(ResourceError, match="node gpu-1 has not reported yet after 0 minutes"):
        reports._wait(static, timeout_s=0, poll_s=0)
    monkeypatch.setattr(absences, "LISTING_S", 0.0)
    with pytest.raises(ResourceError, match="node gpu-1 has no machine: EC2 lists none with its name"):
        reports._wait(static, poll_s=0)
    first = _start_instance(aws, "gpu-1")
    _start_instance(aws, "gpu-1", "other-stack")
    with pytest.raises(ResourceError, match="node gpu-1 has not reported yet after 0 minutes"):
        reports._wait(static, timeout_s=0, poll_s=0)
    aws.client("ec2").terminate_instances(InstanceIds=[first])
    with pytest.raises(ResourceError) as caught:
        reports._wait(static, poll_s=0)
    assert f"node gpu-1 has no machine: {first} is terminated (Client.UserInitiatedShutdown" in str(caught.value)
    assert "`muster up` launches it again" in str(caught.value)
    _start_instance(aws, "gpu-1")
    with pytest.raises(ResourceError, match="node gpu-1 has not reported yet after 0 minutes"):
        reports._wait(static, timeout_s=0, poll_s=0)


def test_a_node_that_reported_before_is_left_to_the_sweep_for_a_while() -> None:
    gone = Absences(in_use_before={"gpu-2"})
    assert gone.update(["gpu-1", "gpu-2"], 1000.0) == []
    assert gone.update(["gpu-1", "gpu-2"], 1000.0 + absences.LISTING_S) == ["gpu-1"]
    assert gone.update(["gpu-2"], 1000.0 + absences.REPLACEMENT_S) == ["gpu-2"]


def test_a_node_that_got_another_machine_is_waited_for_again() -> None:
    gone = Absences(in_use_before=())
    assert gone.update(["gpu-1"], 0.0) == []
    assert gone.update([], absences.LISTING_S) == []
    assert gone.update(["gpu-1"], absences.LISTING_S + 1) == []


def test_a_refresh_finds_nodes_that_are_no_longer_ready(aws: Moto, props: dict[str, object]) -> None:
    put_report(aws, "controller", READY)
    outs = NodeReportsProvider().read("id", props).outs
    assert outs["pending"] == ["gpu-1"]
    assert NodeReportsProvider().diff("id", dict(outs), dict(props)).changes
    assert not NodeReportsProvider().diff("id", props, dict(props)).changes


GARBAGE = ["", "no report", "[]", "{}", '{"instance": "i-1", "state": "hacked"}', "{" * 2000]


@pytest.mark.parametrize("garbage", GARBAGE)
def test_garbage_in_a_report_is_an_unreadable_report(garbage: str) -> None:
    report = parse_report(garbage)
    assert (report.instance, report.state) == ("", "unreadable")
    assert report.line


@pytest.mark.attack(6)
def test_a_report_cannot_control_the_terminal_of_its_reader() -> None:
    report = READY.model_copy(update={"line": "\x1b]0;owned\x07\x1b[2Jfine\r\n", "step": "a\x9bb"})
    parsed = parse_report(report.model_dump_json())
    assert (parsed.line, parsed.step) == ("]0;owned[2Jfine", "ab")


@pytest.mark.attack(6)
def test_garbage_of_another_node_stops_neither_up_nor_teardown(aws: Moto, props: dict[str, object]) -> None:
    for node in ("controller", "gpu-1"):
        put_report(aws, node, READY)
    put_garbage(aws, "gpu-2")
    created = NodeReportsProvider().create(props)
    assert created.outs["applied"] == READY.at
    NodeReportsProvider().delete("id", dict(created.outs))
    assert aws.client("ssm").get_parameters_by_path(Path=parameters.nodes("toy"))["Parameters"] == []


@pytest.mark.attack(6)
def test_a_machine_whose_report_is_garbage_is_set_up_again(aws: Moto, props: dict[str, object]) -> None:
    instance = _start_instance(aws, "gpu-1")
    put_report(aws, "controller", READY)
    put_garbage(aws, "gpu-1")
    fresh = READY.model_copy(update={"instance": instance})
    aws.when_done("SendCommand", lambda: put_report(aws, "gpu-1", fresh))
    NodeReportsProvider().create(props)
    (sent,) = aws.of("SendCommand")
    assert json.loads(sent.params["body"])["InstanceIds"] == [instance]


def test_waiting_for_an_unreadable_report_says_so(aws: Moto, props: dict[str, object]) -> None:
    put_report(aws, "gpu-1", READY)
    put_garbage(aws, "controller")
    instance = _start_instance(aws, "controller")
    with pytest.raises(ResourceError, match="node controller has an unreadable report"):
        reports._wait(props | {"nodes": {"controller": instance}}, timeout_s=0, poll_s=0)


@pytest.mark.attack(6)
def test_a_forged_instance_id_points_no_command_at_another_machine(aws: Moto, props: dict[str, object]) -> None:
    victim, own = _start_instance(aws), _start_instance(aws, "gpu-1")
    put_report(aws, "controller", READY)
    forged = READY.model_copy(update={"bundle": "old", "instance": victim})
    put_report(aws, "gpu-1", forged)
    aws.when_done("SendCommand", lambda: put_report(aws, "gpu-1", READY.model_copy(update={"instance": own})))
    NodeReportsProvider().create(props)
    assert [json.loads(call.params["body"])["InstanceIds"] for call in aws.of("SendCommand")] == [[own]]


def put_garbage(aws: Moto, node: str) -> None:
    aws.client("ssm").put_parameter(Name=parameters.node("toy", node), Value="\x1b[2J{", Type="String", Overwrite=True)


def _start_instance(aws: Moto, node: str = "", stack: str = "toy-stack") -> str:
    tags = {names.CLUSTER: "toy", names.STACK: stack, names.NODE: node} if node else {"owner": "another"}
    specification = {"ResourceType": "instance", "Tags": [{"Key": key, "Value": tags[key]} for key in tags]}
    response = aws.client("ec2").run_instances(
        ImageId="ami-12345678", MinCount=1, MaxCount=1, TagSpecifications=[specification]
    )
    return str(response["Instances"][0]["InstanceId"])
