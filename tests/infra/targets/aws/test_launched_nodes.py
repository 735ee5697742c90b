"""A rotation of the Slurm key on AWS waits for the nodes that Slurm launched: each sets itself up again, once."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Literal

import pytest

from infra.resources.error import ResourceError
from infra.targets.aws import launched_nodes, names
from infra.targets.aws.instances import Instance
from infra.targets.aws.launched_nodes import find_outdated, wait_for_launched_nodes
from infra.targets.aws.launcher.fleet import Fleet
from infra.targets.aws.node import parameters
from infra.targets.aws.node.parameters import Report
from infra.targets.aws.send_command import Script
from infra.targets.target import Deployment
from muster.commands.screen import get_quiet_console
from tests.infra.targets.aws.test_upgrade import start_instance
from tests.moto_server import ACCOUNT, REGION, Moto

DEPLOYMENT = Deployment("toy", "s", REGION, ACCOUNT)
NEW, OLD = "new-bundle", "old-bundle"
State = Literal["working", "ready", "failed"]


def report(id_: str, state: State = "ready", bundle: str = NEW) -> Report:
    return Report(instance=id_, state=state, bundle=bundle, step="slurm", line="no key")


def test_only_compute_nodes_that_lack_the_bundle_are_outdated() -> None:
    reports = {
        "gpu-1": report("i-1"),
        "gpu-2": report("i-2", bundle=OLD),
        "gpu-3": report("i-of-another-machine"),
        "gpu-4": report("i-4", "working"),
        "gpu-5": report("i-5", bundle=OLD),
        "login": report("i-6", bundle=OLD),
    }
    machines = [("gpu-1", "i-1"), ("gpu-2", "i-2"), ("gpu-3", "i-3"), ("gpu-4", "i-4"), ("gpu-9", "i-9")]
    now = datetime(2026, 1, 1, tzinfo=UTC)
    instances = [Instance(id_, name, "compute", "running", now) for name, id_ in machines]
    instances += [
        Instance("i-5", "gpu-5", "compute", "stopping", now),
        Instance("i-6", "login", "login", "running", now),
    ]
    outdated = find_outdated(instances, reports, NEW)
    assert [instance.name for instance in outdated] == ["gpu-2", "gpu-3", "gpu-4", "gpu-9"]


class Machines:
    """The machines of a cluster that Slurm launched, which apply what they are sent."""

    def __init__(self, aws: Moto) -> None:
        self.aws, self.sent = aws, list[tuple[tuple[str, ...], str]]()
        self.outcome: State = "ready"
        ec2, s3 = aws.client("ec2"), aws.client("s3")
        data = {"UserData": base64.b64encode(b"#!/bin/sh\nset up").decode()}
        template = ec2.create_launch_template(LaunchTemplateName="t", LaunchTemplateData=data)["LaunchTemplate"]
        option = {
            "purchase": "on-demand", "zone": f"{REGION}a", "subnet_id": "subnet-1", "instance_type": "g6.xlarge",
            "launch_template_id": template["LaunchTemplateId"], "launch_template_version": "1",
        }  # fmt: skip
        fleet = Fleet.model_validate({
            "cluster": "toy", "stack": "s", "region": REGION, "hosted_zone_id": "Z", "domain": "d", "bundle": NEW,
            "tags": {}, "groups": [{"name": "gpu", "options": [option]}],
        })  # fmt: skip
        bucket = names.bucket("toy", ACCOUNT, REGION)
        s3.create_bucket(Bucket=bucket)
        s3.put_object(Bucket=bucket, Key=parameters.FLEET, Body=fleet.model_dump_json().encode())

    def launch(self, node: str, state: State, bundle: str) -> str:
        id_ = start_instance(self.aws, "compute", node)
        self.write(node, report(id_, state, bundle))
        return id_

    def write(self, node: str, value: Report) -> None:
        self.aws.client("ssm").put_parameter(
            Name=parameters.node("toy", node), Value=value.model_dump_json(), Type="String", Overwrite=True
        )

    def send(self, _region: str, instances: Sequence[str], script: Script) -> str:
        self.sent.append((tuple(instances), script.text))
        for instance in instances:
            self.write("gpu-2", report(instance, self.outcome, NEW))
        return "command"


@pytest.fixture
def machines(aws: Moto, monkeypatch: pytest.MonkeyPatch) -> Machines:
    running = Machines(aws)
    monkeypatch.setattr(launched_nodes, "send_script", running.send)
    return running


def wait(**options: Any) -> None:
    wait_for_launched_nodes(DEPLOYMENT, get_quiet_console(), poll_s=0.01, **options)


def test_a_node_with_the_old_key_sets_itself_up_again(machines: Machines) -> None:
    machines.launch("gpu-1", "ready", NEW)
    outdated = machines.launch("gpu-2", "ready", OLD)
    wait()
    assert machines.sent == [((outdated,), "#!/bin/sh\nset up")]
    wait()
    assert len(machines.sent) == 1


def test_a_node_that_fails_is_named_with_its_step(machines: Machines) -> None:
    machines.launch("gpu-2", "ready", OLD)
    machines.outcome = "failed"
    with pytest.raises(ResourceError, match=r"gpu-2: its set-up failed at slurm: no key\. Fix: `muster ssh gpu-2`"):
        wait()


def test_a_node_that_still_starts_is_not_told_to_start_again(machines: Machines) -> None:
    machines.launch("gpu-2", "working", OLD)
    with pytest.raises(ResourceError, match="gpu-2: it has not set itself up again within 0 minutes"):
        wait(timeout_s=0.0)
    assert machines.sent == []


def test_up_updates_nodes_that_were_ready_and_does_not_wait_for_others(machines: Machines) -> None:
    """A node that never gets ready, which Slurm replaces, must not stop an `up`."""
    machines.launch("gpu-1", "working", OLD)
    outdated = machines.launch("gpu-2", "ready", OLD)
    machines.launch("gpu-3", "failed", OLD)
    machines.launch("gpu-4", "failed", NEW)
    wait(starting=False)
    assert [instances for instances, _ in machines.sent] == [(outdated,)]


def test_up_names_a_node_that_fails_to_apply_it(machines: Machines) -> None:
    machines.launch("gpu-2", "ready", OLD)
    machines.outcome = "failed"
    with pytest.raises(ResourceError, match=r"gpu-2: its set-up failed at slurm"):
        wait(starting=False)
