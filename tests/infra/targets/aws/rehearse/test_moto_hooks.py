"""Run Command in a rehearsal: a script runs on the instances that it names, and on no others."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from infra.targets.aws.rehearse import moto_hooks
from tests.moto_server import Moto, aws, moto  # noqa: F401  # fixtures


def test_a_script_runs_only_where_it_is_sent(aws: Moto, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
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
