"""What GPU nodes cost at the first `up` before they could run a job, in the time and at the prices of AWS."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cluster.catalog.prices import instance_price
from cluster.names import CONTROLLER
from cluster.plural import format_count
from infra.targets.aws.rehearse.instance import Instance
from infra.targets.aws.rehearse.instances import Instances
from infra.targets.aws.rehearse.machine import read_installation_s

_HOUR_S = 3600.0


@dataclass(frozen=True)
class SetUpTime:
    """How long a machine took until it could run a job, in seconds on AWS."""

    pending_s: float
    """From its launch until it was billed."""
    total_s: float
    """From its launch until it was ready."""
    usd_per_hour: float


def convert_to_aws(wall_s: float, shortened_s: float, speed: float) -> float:
    """Return the seconds on AWS of a time on this machine that contains `shortened_s` seconds of shortened delays."""
    return wall_s + shortened_s * (speed - 1)


def compute_idle_usd(nodes: Sequence[SetUpTime], controller: SetUpTime | None = None) -> float:
    """Return what nodes cost before they could run a job; with `controller`, if they had been launched with it."""
    waits_s = [max(node.total_s, controller.total_s if controller else 0.0) - node.pending_s for node in nodes]
    return sum(wait_s * node.usd_per_hour for node, wait_s in zip(nodes, waits_s, strict=True)) / _HOUR_S


def describe_idle_cost(nodes: Sequence[SetUpTime], controller: SetUpTime) -> str:
    """Return a line with the idle cost, and with that of a launch of all machines at once; empty without nodes."""
    if not nodes:
        return ""
    actual, together = compute_idle_usd(nodes), compute_idle_usd(nodes, controller)
    longest_s = max(node.total_s - node.pending_s for node in nodes)
    saved = f", {1 - actual / together:.0%} less" if together > actual else ""
    return (
        f"idle GPU nodes: {actual:.2f} USD for {format_count(len(nodes), 'node')}, up to {longest_s:.0f} s each on AWS "
        f"before a job could run; {together:.2f} USD if all machines were launched at once{saved}"
    )


def report_idle_cost(instances: Instances, region: str) -> str:
    """Return the line with the idle cost of the GPU nodes that are ready; empty if there are none."""
    ready = [instance for instance in instances.by_id.values() if instance.ready_at and not instance.is_ending]
    controllers = [instance for instance in ready if instance.name == CONTROLLER]
    gpu_nodes = [instance for instance in ready if instances.types[instance.raw.instance_type].gpus.count]
    if not (controllers and gpu_nodes):
        return ""
    times = [measure_set_up(instances, instance, region) for instance in (*gpu_nodes, controllers[0])]
    return describe_idle_cost(times[:-1], times[-1])


def read_slept(instances: Instances, instance: Instance) -> float:
    """Return how long the stand-ins of package tools have slept on a machine."""
    return read_installation_s(instances.container(instance.id))


def measure_set_up(instances: Instances, instance: Instance, region: str) -> SetUpTime:
    """Return how long a machine that is ready took, in seconds on AWS."""
    speed = instances.clock.speed
    shortened_s = read_slept(instances, instance) + (instance.pending_s + instance.boot_s) / speed
    wall_s = (instance.ready_at or 0.0) - instance.launched_at - instance.container_boot_s
    price = instance_price(instance.raw.instance_type, region)
    return SetUpTime(
        pending_s=instance.pending_s,
        total_s=convert_to_aws(wall_s, shortened_s, speed),
        usd_per_hour=price.usd_per_hour if price else 0.0,
    )
