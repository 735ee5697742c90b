"""How long a job waited for nodes that had to be launched for it, in the time of AWS, and what it waited for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from infra.engine.stop import FAILED, Stop
from infra.targets.aws.rehearse.idle_cost import measure_set_up, read_slept
from infra.targets.aws.rehearse.instances import Instances
from infra.targets.aws.rehearse.rehearsed_slurm import name_job
from infra.targets.aws.rehearse.timeline import WAITING, Event

MAX_AFTER_BOOT_S = 30.0
"""How long a job on new nodes from a baked image may wait, besides their boot."""


@dataclass(frozen=True)
class ColdStart:
    """The parts of the time from `sbatch` until a job runs, in seconds on AWS."""

    launch_s: float
    """Until the machine was launched."""
    boot_s: float
    """Until the machine ran its user data."""
    install_s: float
    """Installation of packages, which a baked image saves; from the table of delays, not measured."""
    configure_s: float
    """Everything else until the machine reported that it can run jobs; as long as on the machine that rehearses."""
    start_s: float
    """Until Slurm started the job."""

    @property
    def total_s(self) -> float:
        return self.launch_s + self.boot_s + self.install_s + self.configure_s + self.start_s

    @property
    def after_boot_s(self) -> float:
        """Everything but the machine's boot."""
        return self.total_s - self.boot_s

    def __str__(self) -> str:
        return (
            f"cold start: the job ran {self.total_s:.0f} s after sbatch in simulated time: {self.launch_s:.0f} s until "
            f"its nodes were launched, {self.boot_s:.0f} s boot, {self.install_s:.0f} s package installation, "
            f"{self.configure_s:.0f} s other set-up, {self.start_s:.0f} s until Slurm started it"
        )


def check_baked_start(start: ColdStart | None) -> str:
    """Return a line about the start of a job on new nodes from a baked image; raise Stop if it began too late."""
    if start is None:
        raise Stop("the job should have waited for nodes from a baked image, but none was launched", code=FAILED)
    summary = f"from a baked image: boot {start.boot_s:.0f} s + {start.after_boot_s:.0f} s"
    if start.after_boot_s > MAX_AFTER_BOOT_S:
        raise Stop(f"{summary}, at most {MAX_AFTER_BOOT_S:.0f} s are allowed after the boot; {start}", code=FAILED)
    return f"{summary}; {start}"


def find_moment(events: Sequence[Event], subject: str, what: str) -> float | None:
    """Return the last moment at which a subject entered a state, in seconds since the rehearsal began."""
    return next((event.at_s for event in reversed(events) if (event.subject, event.what) == (subject, what)), None)


def find_submission(events: Sequence[Event], job: str) -> float | None:
    """Return when a job was submitted; it is recorded as submitted again when Slurm's answer about it is empty."""
    return next((event.at_s for event in events if (event.subject, event.what) == (job, "submitted")), None)


def find_start(events: Sequence[Event], job: str) -> float | None:
    """Return when a job was first seen in a state after those of waiting; a short one is never seen running."""
    return next((event.at_s for event in events if event.subject == job and event.what not in WAITING), None)


def report_cold_start(instances: Instances, job: str, region: str) -> ColdStart | None:
    """Return the cold start of the node that was ready last; None if no node was launched for the job."""
    events, subject = instances.timeline.events, name_job(job)
    submitted, started = find_submission(events, subject), find_start(events, subject)
    if submitted is None or started is None:
        return None
    starts = []
    for instance in instances.by_id.values():
        launched, ready = (find_moment(events, instance.name, state) for state in ("pending", "ready"))
        if launched is None or ready is None or instance.is_ending or launched < submitted:
            continue
        boot_s = instance.pending_s + instance.boot_s
        install_s = read_slept(instances, instance) * instances.clock.speed
        configure_s = measure_set_up(instances, instance, region).total_s - boot_s - install_s
        # Slurm may start a job before the node's own check has ended.
        waited_s = max(started - ready, 0.0)
        starts.append(ColdStart(launched - submitted, boot_s, install_s, configure_s, waited_s))
    return max(starts, key=lambda start: start.total_s, default=None)
