"""A machine reports that its set-up failed: its job is requeued at once, and the node shows the step and error."""

from __future__ import annotations

import json

import pytest

from infra.targets.aws.node import parameters
from slurm.power import limits
from slurm.power.context import Context
from slurm.power.programs import resume
from slurm.power.sweep import sweep
from tests.moto_server import Moto
from tests.slurm.power.cluster import Clock, FakeSlurm, list_running

COMING = "ALLOCATED+CLOUD+NOT_RESPONDING+POWERING_UP"


def report(aws: Moto, name: str, instance: str, state: str = "failed", **more: str) -> None:
    report_fields = {
        "instance": instance,
        "state": state,
        "step": "software",
        "line": "NVIDIA driver 535;\nallowed: 580",
        **more,
    }
    aws.client("ssm").put_parameter(
        Name=parameters.node("demo", name), Value=json.dumps(report_fields), Type="String", Overwrite=True
    )


@pytest.mark.fault(19, place="simulated AWS")
def test_a_failed_set_up_requeues_the_job_and_terminates_the_machine(
    aws: Moto, context: Context, slurm: FakeSlurm
) -> None:
    up = resume(context, ["gpu-1", "gpu-2"], []).up
    slurm.states |= {"gpu-1": COMING, "gpu-2": COMING}
    report(aws, "gpu-1", up["gpu-1"].id)
    report(aws, "gpu-2", up["gpu-2"].id, "working")
    assert [(finding.rule, finding.subject) for finding in sweep(context)] == [("failed-set-up", "gpu-1")]
    assert slurm.reasons == {"gpu-1": "muster: set-up: software: NVIDIA driver 535; allowed: 580"}
    assert slurm.states["gpu-2"] == COMING
    assert context.memory.load(limits.BREAKER)["gpu"]["failures"] == 1
    # The next sweep powers the node down, and Slurm then terminates its machine.
    assert [(finding.rule, finding.subject) for finding in sweep(context)] == [("replace", "gpu-1")]
    assert ["update", "nodename=gpu-1", "state=POWER_DOWN"] in slurm.commands


def test_the_report_of_an_earlier_machine_is_ignored(aws: Moto, context: Context, slurm: FakeSlurm) -> None:
    resume(context, ["gpu-1"], [])
    slurm.states["gpu-1"] = COMING
    report(aws, "gpu-1", "i-0000")
    assert sweep(context) == []


def test_an_invalid_report_is_left_to_the_timeout(aws: Moto, context: Context, slurm: FakeSlurm) -> None:
    up = resume(context, ["gpu-1"], []).up
    slurm.states["gpu-1"] = COMING
    report(aws, "gpu-1", up["gpu-1"].id, "exploded")
    assert sweep(context) == []


def test_reports_are_read_in_batches_of_ten(aws: Moto, context: Context, slurm: FakeSlurm, clock: Clock) -> None:
    names = [f"gpu-{number}" for number in range(1, 26)]
    resume(context, names, [])
    slurm.states |= dict.fromkeys(names, COMING)
    aws.calls.clear()
    sweep(context)
    assert aws.count()["GetParameters"] == 3
    assert len(list_running(aws)) == len(names)
