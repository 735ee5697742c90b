"""The cold start of a job: when it began, and the parts of its wait."""

from __future__ import annotations

from infra.targets.aws.rehearse.cold_start import ColdStart, find_moment, find_start
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


def test_the_last_launch_of_a_node_counts() -> None:
    assert find_moment(EVENTS, "gpu-1", "pending") == 30.0
    assert find_moment(EVENTS, "gpu-2", "pending") is None


def test_the_line_has_every_part() -> None:
    assert str(ColdStart(launch_s=4, boot_s=79.4, set_up_s=100, start_s=17)) == (
        "cold start: the job ran 200 s on AWS after sbatch: 4 s until its nodes were launched, 79 s boot, "
        "100 s set-up, 17 s until Slurm started it"
    )
