"""How long nodes take from the begin of their boot until a job has run, from AWS's image and from a baked one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from infra.engine.stop import FAILED, Stop
from infra.targets.aws.rehearse.cold_start import MAX_AFTER_BOOT_S
from infra.targets.aws.rehearse.idle_cost import convert_to_aws, read_slept
from infra.targets.aws.rehearse.instance import Instance
from infra.targets.aws.rehearse.instances import Instances


@dataclass(frozen=True)
class FirstJob:
    """The parts of the time from the begin of a node's boot until its first job has run, in seconds on AWS."""

    boot_s: float
    """Until the machine ran its user data; drawn from the table of delays."""
    install_s: float
    """Installation of packages; drawn from the table of delays."""
    other_s: float
    """Everything else, as long as on the machine that rehearses."""

    @property
    def total_s(self) -> float:
        return self.boot_s + self.install_s + self.other_s

    @property
    def after_boot_s(self) -> float:
        return self.install_s + self.other_s

    def __str__(self) -> str:
        parts = f"{self.boot_s:.0f} boot, {self.install_s:.0f} package installation, {self.other_s:.0f} other"
        return f"{self.total_s:.0f} s ({parts})"


def compare_images(unbaked: FirstJob, baked: FirstJob) -> str:
    """Return a line with both times and their ratio, as drawn and as it is if both machines boot equally fast."""
    # The two boots are different draws: without their difference, the ratio shows only what the image changes.
    same_boot = (unbaked.boot_s + baked.after_boot_s) / unbaked.total_s
    return (
        f"boot to first job on AWS: {unbaked} from AWS's image, {baked} from a baked image: "
        f"{baked.total_s / unbaked.total_s:.0%}; {same_boot:.0%} with the same boot, "
        f"{baked.after_boot_s / unbaked.after_boot_s:.0%} without it"
    )


def check_baked_node(first_job: FirstJob) -> None:
    """Raise Stop if a node from a baked image could run a job too late after its boot."""
    if first_job.after_boot_s > MAX_AFTER_BOOT_S:
        limit = f"at most {MAX_AFTER_BOOT_S:.0f} s are allowed after the boot"
        raise Stop(f"from a baked image: {first_job}, {limit}", code=FAILED)


def measure_first_job(
    instances: Instances, nodes: Sequence[Instance], submitted_at: float, ended_at: float
) -> FirstJob:
    """Return the time of the slowest of a job's nodes; both moments are on the clock of `time.monotonic`.

    A node's wait for the others is not part of its time. Nodes that were ready before the job was submitted are
    measured until they were.
    """
    ready_at = [min(node.ready_at or ended_at, ended_at) for node in nodes]
    started_s = ended_at - max(ready_at) if max(ready_at) > submitted_at else 0.0
    times = [_measure_node(instances, node, ready + started_s) for node, ready in zip(nodes, ready_at, strict=True)]
    return max(times, key=lambda time: time.total_s)


def _measure_node(instances: Instances, node: Instance, end: float) -> FirstJob:
    speed, slept_s = instances.clock.speed, read_slept(instances, node)
    began = node.launched_at + node.pending_s / speed
    install_s = slept_s * speed
    total_s = convert_to_aws(end - began - node.container_boot_s, slept_s + node.boot_s / speed, speed)
    return FirstJob(node.boot_s, install_s, total_s - node.boot_s - install_s)
