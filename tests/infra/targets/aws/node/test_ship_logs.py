"""Logs of a machine: packed, stored under its node's name, and read by `muster logs` when the machine is gone."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.engine.stop import Stop
from infra.targets.aws.node import parameters, ship_logs
from infra.targets.aws.node_logs import list_node_logs
from infra.targets.target import Deployment
from muster.commands.logs import choose_log, describe_logs
from tests.infra.targets.aws.node.metadata import Machine, metadata
from tests.moto_server import REGION, Moto

BUCKET = f"muster-demo-123456789012-{REGION}"
DEMO = Deployment("demo", "stack", REGION, "123456789012")


@pytest.fixture
def machine(aws: Moto, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    aws.client("s3").create_bucket(Bucket=BUCKET)
    this = Machine("i-0abc", "127.0.0.1", {parameters.NODE_TAG: "gpu-1"})
    with metadata("127.0.0.1", {"127.0.0.1": this}) as endpoint:
        monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", endpoint)
        yield this


def test_logs_of_every_machine_of_a_node_can_be_read(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "slurmd.log"
    monkeypatch.setattr(ship_logs, "FILES", (str(log), str(tmp_path / "missing.log")))
    monkeypatch.setattr(ship_logs, "COMMANDS", (("echo", "Xid 79"), ("no-such-program",)))
    log.write_text("slurmd started\n")
    assert ship_logs.main(REGION, BUCKET) == 0
    machine.instance = "i-0def"
    log.write_text("slurmd of the next machine\n")
    assert ship_logs.main(REGION, BUCKET) == 0
    stored = list_node_logs(DEMO, "gpu-1")
    assert {each.machine for each in stored} == {"i-0abc", "i-0def"}
    first = choose_log(stored, "gpu-1", "i-0abc")
    assert first.read() == f"==> {log} <==\nslurmd started\n\n==> echo Xid 79 <==\nXid 79\n\n"
    assert describe_logs(stored, first).startswith("machine i-0abc, stored 20")
    assert "others: i-0def (" in describe_logs(stored, first)
    assert list_node_logs(DEMO, "gpu-11") == []


def test_only_the_own_folder_of_a_machine_counts(machine: Machine, aws: Moto) -> None:
    arn = "arn:aws:ec2:us-east-1:123456789012:instance/i-1"
    keys = {
        parameters.stored("gpu-1", arn): "i-1",
        "logs/gpu-1/i-2.log.gz": "i-2",
        parameters.stored("gpu-1", arn, "arn:aws:ec2:us-east-1:123456789012:instance/i-3/log.gz"): "",
        parameters.stored("gpu-1", arn, "i-3.log.gz"): "",
        parameters.stored("gpu-1", arn, parameters.PACKAGE_LIST): "",
        parameters.stored("gpu-11", arn): "",
    }
    for key in keys:
        aws.client("s3").put_object(Bucket=BUCKET, Key=key, Body=b"")
    assert {key: parameters.read_machine("gpu-1", key) for key in keys} == keys
    assert sorted(log.machine for log in list_node_logs(DEMO, "gpu-1")) == ["i-1", "i-2"]


def test_a_node_without_logs_and_an_unknown_machine_are_errors(machine: Machine) -> None:
    with pytest.raises(Stop, match="node: no logs of 'gpu-9' are stored"):
        choose_log(list_node_logs(DEMO, "gpu-9"), "gpu-9", None)
    ship_logs.main(REGION, BUCKET)
    with pytest.raises(Stop, match="machine: 'i-1' has no stored logs of gpu-1"):
        choose_log(list_node_logs(DEMO, "gpu-1"), "gpu-1", "i-1")


def test_a_bucket_that_is_gone_does_not_delay_a_shutdown(
    machine: Machine, aws: Moto, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    aws.client("s3").delete_bucket(Bucket=BUCKET)
    monkeypatch.setattr(ship_logs, "RETRY_FOR_S", 0.1)
    assert ship_logs.main(REGION, BUCKET) == 1
    assert "NoSuchBucket" in capsys.readouterr().err


def test_only_whole_lines_of_the_end_of_a_file_are_stored(tmp_path: Path) -> None:
    log = tmp_path / "long.log"
    log.write_text("".join(f"line {number}\n" for number in range(60_000)))
    text = ship_logs.read_tail(log)
    assert len(text) <= ship_logs.TAIL_BYTES
    assert text.startswith(b"line ")
    assert text.endswith(b"line 59999\n")
    assert gzip.decompress(ship_logs.pack({"a": lambda: b"x", "b": lambda: b""})) == b"==> a <==\nx\n"
