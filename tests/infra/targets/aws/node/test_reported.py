"""The one who waits for nodes: what they said decides, old words do not count, and an error says where to look."""

from __future__ import annotations

import pytest
from botocore.exceptions import ClientError

from infra.resources.error import ResourceError
from infra.targets.aws.build import reports
from infra.targets.aws.build.reports import ExpectedNodes, NodeReportsProvider
from infra.targets.aws.node import parameters
from infra.targets.aws.node.parameters import Report
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
    ],
)
def test_what_a_report_means(report: Report | None, expected: str) -> None:
    assert EXPECTED.state("controller", report) == expected


def test_any_machine_will_do_where_none_is_named() -> None:
    assert EXPECTED.state("gpu-1", READY.model_copy(update={"instance": "i-77"})) == "ready"


def test_a_failure_of_before_is_no_news() -> None:
    again = FAILED.model_copy(update={"at": "t2"})
    assert EXPECTED.failures({"controller": FAILED}, {"controller": FAILED}) == []
    assert [str(one) for one in EXPECTED.failures({"controller": FAILED}, {"controller": again})] == [
        "node controller failed at mounts: fs does not answer"
    ]


@pytest.fixture
def props(aws: Moto) -> dict[str, object]:
    nodes = {"controller": "i-1", "gpu-1": ""}
    return {"cluster": "toy", "region": REGION, "nodes": nodes, "bundle": "new", "script": "#!/bin/sh\ntrue\n"}


def say(aws: Moto, node: str, report: Report) -> None:
    ssm = aws.client("ssm")
    ssm.put_parameter(Name=parameters.node("toy", node), Value=report.model_dump_json(), Type="String", Overwrite=True)


def test_ready_nodes_are_not_waited_for_and_go_with_the_cluster(aws: Moto, props: dict[str, object]) -> None:
    for node in ("controller", "gpu-1", "gpu-2"):
        say(aws, node, READY)
    made = NodeReportsProvider().create(props)
    assert made.outs["applied"] == READY.at
    assert aws.of("SendCommand") == []
    assert NodeReportsProvider().read("id", dict(made.outs)).outs["pending"] == []
    NodeReportsProvider().delete("id", dict(made.outs))
    assert aws.client("ssm").get_parameters_by_path(Path=parameters.nodes("toy"))["Parameters"] == []


def test_a_machine_with_another_bundle_is_told_to_do_it_again(aws: Moto, props: dict[str, object]) -> None:
    instance = _instance(aws)
    old = READY.model_copy(update={"bundle": "old", "instance": instance})
    say(aws, "gpu-1", old)
    say(aws, "controller", READY)
    aws.when_done("SendCommand", lambda: say(aws, "gpu-1", old.model_copy(update={"bundle": "new"})))
    NodeReportsProvider().create(props)
    (sent,) = aws.of("SendCommand")
    assert f'"InstanceIds": ["{instance}"]' in sent.params["body"]


def test_a_failing_node_is_named_with_step_line_and_where_to_look(aws: Moto, props: dict[str, object]) -> None:
    instance = _instance(aws)
    here = FAILED.model_copy(update={"instance": instance})
    say(aws, "controller", here)
    say(aws, "gpu-1", READY)
    aws.when_done("SendCommand", lambda: say(aws, "controller", here.model_copy(update={"at": "t2"})))
    with pytest.raises(ResourceError) as caught:
        NodeReportsProvider().create(props | {"nodes": {"controller": instance, "gpu-1": ""}})
    said = str(caught.value)
    assert "node controller failed at mounts: fs does not answer. Fix: `muster ssh controller`" in said
    assert "/var/log/muster/node.log" in said


def test_words_of_a_machine_that_is_gone_hold_up_nobody() -> None:
    class Ssm:
        """As AWS has it: one instance that it does not know, and nobody is told."""

        def __init__(self) -> None:
            self.told: list[str] = []

        def send_command(self, InstanceIds: list[str], **_: object) -> None:
            if "i-gone" in InstanceIds:
                raise ClientError({"Error": {"Code": "InvalidInstanceId", "Message": ""}}, "SendCommand")
            self.told += InstanceIds

    ssm = Ssm()
    reports._set_up_again(ssm, {"controller": "i-1", "gpu-1": "i-gone", "gpu-2": "i-2"}, "")
    assert ssm.told == ["i-1", "i-2"]


def test_only_what_goes_is_forgotten(aws: Moto, props: dict[str, object]) -> None:
    for node in ("controller", "login", "gpu-1"):
        say(aws, node, READY)
    NodeReportsProvider().delete("id", props | {"nodes": {"login": "i-1"}})
    left = aws.client("ssm").get_parameters_by_path(Path=parameters.nodes("toy"))["Parameters"]
    assert sorted(one["Name"] for one in left) == ["/muster/toy/nodes/controller", "/muster/toy/nodes/gpu-1"]


def test_it_does_not_wait_for_ever(aws: Moto, props: dict[str, object]) -> None:
    say(aws, "controller", READY.model_copy(update={"state": "working", "step": "slurm"}))
    with pytest.raises(ResourceError, match="node controller working at slurm after 0 minutes, and 1 more"):
        reports._wait(props, timeout_s=0, poll_s=0)


def test_a_machine_that_has_ended_is_not_waited_for(
    aws: Moto, props: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one does at once whose disk cannot be opened with its key."""
    monkeypatch.setattr(reports, "EC2_POLL_S", 0.0)
    instance = _instance(aws)
    nodes = {"controller": instance, "gpu-1": ""}
    with pytest.raises(ResourceError, match="after 0 minutes"):
        reports._wait(props | {"nodes": nodes}, timeout_s=0, poll_s=0)
    aws.client("ec2").terminate_instances(InstanceIds=[instance])
    with pytest.raises(ResourceError) as caught:
        reports._wait(props | {"nodes": nodes}, poll_s=0)
    reason = "Client.UserInitiatedShutdown: User initiated shutdown"
    assert f"the machine of node controller will not report: {instance} is terminated ({reason})" in str(caught.value)
    with pytest.raises(ResourceError, match="i-0123456789abcdef0 does not exist any more"):
        reports._wait(props | {"nodes": {"controller": "i-0123456789abcdef0"}}, poll_s=0)


def test_a_refresh_finds_who_is_not_ready_any_more(aws: Moto, props: dict[str, object]) -> None:
    say(aws, "controller", READY)
    outs = NodeReportsProvider().read("id", props).outs
    assert outs["pending"] == ["gpu-1"]
    assert NodeReportsProvider().diff("id", dict(outs), dict(props)).changes
    assert not NodeReportsProvider().diff("id", props, dict(props)).changes


def _instance(aws: Moto) -> str:
    made = aws.client("ec2").run_instances(ImageId="ami-12345678", MinCount=1, MaxCount=1)
    return str(made["Instances"][0]["InstanceId"])
