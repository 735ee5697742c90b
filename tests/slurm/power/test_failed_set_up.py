"""A node whose machine reports that its set-up failed: its job goes back at once, with the step and its words."""

from __future__ import annotations

import json

from cluster.inventory import parameters
from slurm.power import breaker
from slurm.power.program import Desk
from slurm.power.resume import resume
from slurm.power.sweep import sweep
from tests.moto_server import Moto
from tests.slurm.power.cluster import Clock, FakeSlurm, machines

COMING = "ALLOCATED+CLOUD+NOT_RESPONDING+POWERING_UP"


def report(aws: Moto, name: str, instance: str, state: str = "failed", **more: str) -> None:
    said = {
        "instance": instance,
        "state": state,
        "step": "software",
        "line": "NVIDIA driver 535;\nallowed: 580",
        **more,
    }
    aws.client("ssm").put_parameter(
        Name=parameters.node("demo", name), Value=json.dumps(said), Type="String", Overwrite=True
    )


def test_it_gives_its_job_back_and_its_machine_goes(aws: Moto, desk: Desk, slurm: FakeSlurm) -> None:
    up = resume(desk, ["gpu-1", "gpu-2"], []).up
    slurm.states |= {"gpu-1": COMING, "gpu-2": COMING}
    report(aws, "gpu-1", up["gpu-1"].id)
    report(aws, "gpu-2", up["gpu-2"].id, "working")
    assert [(one.rule, one.subject) for one in sweep(desk)] == [("failed-set-up", "gpu-1")]
    assert slurm.reasons == {"gpu-1": "muster: set-up: software: NVIDIA driver 535; allowed: 580"}
    assert slurm.states["gpu-2"] == COMING
    assert desk.memory.load(breaker.NAME)["gpu"]["failures"] == 1
    # The next look gives it back to Slurm, which then ends the machine.
    assert [(one.rule, one.subject) for one in sweep(desk)] == [("replace", "gpu-1")]
    assert ["update", "nodename=gpu-1", "state=POWER_DOWN"] in slurm.told


def test_what_an_earlier_machine_said_does_not_count(aws: Moto, desk: Desk, slurm: FakeSlurm) -> None:
    resume(desk, ["gpu-1"], [])
    slurm.states["gpu-1"] = COMING
    report(aws, "gpu-1", "i-0000")
    assert sweep(desk) == []


def test_a_report_that_nobody_understands_is_left_to_the_timeout(aws: Moto, desk: Desk, slurm: FakeSlurm) -> None:
    up = resume(desk, ["gpu-1"], []).up
    slurm.states["gpu-1"] = COMING
    report(aws, "gpu-1", up["gpu-1"].id, "exploded")
    assert sweep(desk) == []


def test_many_are_asked_for_ten_at_a_time(aws: Moto, desk: Desk, slurm: FakeSlurm, clock: Clock) -> None:
    names = [f"gpu-{number}" for number in range(1, 26)]
    resume(desk, names, [])
    slurm.states |= dict.fromkeys(names, COMING)
    aws.calls.clear()
    sweep(desk)
    assert aws.count()["GetParameters"] == 3
    assert len(machines(aws)) == len(names)
