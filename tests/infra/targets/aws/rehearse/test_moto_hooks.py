"""What a rehearsal adds to moto: Run Command on the instances that it names, and images of their containers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from infra.targets.aws.rehearse import moto_gaps, moto_hooks
from tests.moto_server import Moto


def test_a_script_runs_only_where_it_is_sent(aws: Moto, monkeypatch: pytest.MonkeyPatch) -> None:
    image = aws.client("ec2").describe_images(Owners=["amazon"])["Images"][0]["ImageId"]
    launched = aws.client("ec2").run_instances(ImageId=image, MinCount=3, MaxCount=3, InstanceType="m7i.large")
    ids = [row["InstanceId"] for row in launched["Instances"]]
    instances: Any = SimpleNamespace(by_id=dict.fromkeys(ids, SimpleNamespace(is_registered=True)))
    started: list[str] = []
    monkeypatch.setattr(moto_hooks.Commands, "start", lambda _self, _command, chosen: started.extend(chosen))
    with moto_hooks.connect_instances(instances):
        document, script = "AWS-RunShellScript", {"commands": ["srun hostname"]}
        aws.client("ssm").send_command(InstanceIds=ids[:1], DocumentName=document, Parameters=script)
    assert started == ids[:1]


def test_an_image_is_made_of_the_container_of_its_instance(aws: Moto) -> None:
    moto_gaps.apply()
    ec2 = aws.client("ec2")
    base = ec2.describe_images(Owners=["amazon"])["Images"][0]["ImageId"]
    instance = ec2.run_instances(ImageId=base, MinCount=1, MaxCount=1)["Instances"][0]["InstanceId"]
    commits: list[tuple[str, str]] = []
    instances: Any = SimpleNamespace(
        by_id={instance: None}, create_image=lambda image, instance_id: commits.append((image.id, instance_id))
    )
    tags = [{"Key": "muster.cluster", "Value": "demo"}]
    kinds = [{"ResourceType": kind, "Tags": tags} for kind in ("image", "snapshot")]
    with moto_hooks.connect_instances(instances):
        image = ec2.create_image(InstanceId=instance, Name="baked", TagSpecifications=kinds)["ImageId"]
    assert commits == [(image, instance)]
    filters = [{"Name": "tag:muster.cluster", "Values": ["demo"]}]
    assert len(ec2.describe_snapshots(OwnerIds=["self"], Filters=filters)["Snapshots"]) == 1
