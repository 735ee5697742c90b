"""The cold start of a job: when it began, and the parts of its wait."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest

from infra.engine.stop import Stop
from infra.targets.aws.rehearse import cold_start, idle_cost
from infra.targets.aws.rehearse.cold_start import (
    ColdStart,
    check_baked_start,
    find_moment,
    find_start,
    find_submission,
    report_cold_start,
)
from infra.targets.aws.rehearse.instances import Instances
from infra.targets.aws.rehearse.timeline import Event

EVENTS = (
    Event(1.0, "job 1", "submitted"),
    Event(1.5, "job 1", "configuring"),
    Event(2.0, "gpu-1", "pending"),
    Event(9.0, "gpu-1", "ready"),
    Event(20.0, "job 1", "completing"),
    Event(21.0, "job 1", "completed"),
    Event(30.0, "gpu-1", "pending"),
)


def test_a_short_job_starts_when_it_no_longer_waits() -> None:
    assert find_start(EVENTS, "job 1") == 20.0
    assert find_start(EVENTS[:4], "job 1") is None


def test_an_empty_answer_about_a_job_is_no_second_submission() -> None:
    assert find_submission((*EVENTS[:4], Event(12.0, "job 1", "submitted")), "job 1") == 1.0
    assert find_submission(EVENTS, "job 2") is None


def test_a_job_on_nodes_from_a_baked_image_may_wait_30_s_besides_their_boot() -> None:
    start = ColdStart(launch_s=4, boot_s=79.4, install_s=0, configure_s=24, start_s=2)
    assert check_baked_start(start).startswith("from a baked image: boot 79 s + 30 s; cold start: the job ran 109 s")
    with pytest.raises(Stop, match=r"boot 79 s \+ 31 s, at most 30 s are allowed after the boot"):
        check_baked_start(replace(start, install_s=1))
    with pytest.raises(Stop, match="none was launched"):
        check_baked_start(None)


def test_the_last_launch_of_a_node_counts() -> None:
    assert find_moment(EVENTS, "gpu-1", "pending") == 30.0
    assert find_moment(EVENTS, "gpu-2", "pending") is None


def test_the_parts_of_a_cold_start_are_those_of_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """At speed 20, 2 s of sleep are 40 s of package installation, and 3 s of shortened boot are 60 s."""
    monkeypatch.setattr(cold_start, "read_slept", lambda *_: 2.0)
    monkeypatch.setattr(idle_cost, "read_slept", lambda *_: 2.0)
    raw = SimpleNamespace(instance_type="g6.xlarge")
    node = SimpleNamespace(
        name="gpu-1", raw=raw, is_ending=False, launched_at=50.0, ready_at=67.0, pending_s=20.0, boot_s=40.0,
        container_boot_s=4.0,
    )  # fmt: skip
    instances = SimpleNamespace(
        timeline=SimpleNamespace(events=EVENTS[:6]), by_id={"i-1": node}, clock=SimpleNamespace(speed=20.0)
    )
    assert report_cold_start(cast(Instances, instances), "1", "us-east-1") == ColdStart(
        launch_s=1.0, boot_s=60.0, install_s=40.0, configure_s=8.0, start_s=11.0
    )


def test_the_line_has_every_part() -> None:
    assert str(ColdStart(launch_s=4, boot_s=79.4, install_s=38, configure_s=62, start_s=17)) == (
        "cold start: the job ran 200 s after sbatch in simulated time: 4 s until its nodes were launched, 79 s boot, "
        "38 s package installation, 62 s other set-up, 17 s until Slurm started it"
    )
