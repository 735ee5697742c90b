"""All steps, in order, and which of them may run concurrently. A new step is added here."""

from __future__ import annotations

from collections.abc import Iterable

from bootstrap.desired import Desired
from bootstrap.facts.collect import Probe
from bootstrap.steps import (
    accounting,
    alerts,
    containers,
    controller,
    fabric,
    health,
    hosts,
    isolation,
    job_network,
    limits,
    members,
    metadata,
    packages,
    restored_jobs,
    shared_files,
    ssh,
    storage,
    time,
    users,
)
from bootstrap.steps.cloud import (
    disks,
    imex,
    interruption,
    job_credentials,
    logs,
    lustre_client,
    mounts,
    names,
    nfs_access,
    node_packages,
    power,
    slurm_packages,
    software,
    system,
)
from bootstrap.steps.step import Step
from cluster.inventory import Node, Role

# Run on all nodes before everything else, which may write to shared filesystems.
STORAGE: tuple[Step, ...] = (storage.STEP,)
# Run on all nodes at the same time.
BASE: tuple[Step, ...] = (
    packages.STEP,
    # Before there are users.
    metadata.STEP,
    accounting.DATABASE_STEP,
    hosts.STEP,
    users.STEP,
    ssh.STEP,
    limits.STEP,
    time.STEP,
    fabric.STEP,
    health.STEP,
    isolation.STEP,
    containers.STEP,
    job_network.STEP,
)
# Run on the controller after BASE.
CONTROL: tuple[Step, ...] = (accounting.STEP, restored_jobs.STEP, controller.STEP, alerts.STEP)
# Run on the controller at the same time as everything else: Slurm does not need them.
SHIPPED: tuple[Step, ...] = (shared_files.BUNDLE_STEP, shared_files.ENVIRONMENT_STEP)
# Run on the other nodes once slurmctld serves the configuration.
MEMBERS: tuple[Step, ...] = (members.LOGIN_STEP, members.COMPUTE_STEP)

ALL: tuple[Step, ...] = (*STORAGE, *BASE, *CONTROL, *MEMBERS, *SHIPPED)

# Run first on cloud machines, which set themselves up. The machine may have to restart after them, with another kernel.
KERNEL: tuple[Step, ...] = (system.UPDATES_STEP, lustre_client.STEP)
# Run after them on a machine that installs another kernel with its other packages, and restarts then.
WITH_KERNEL: tuple[Step, ...] = (slurm_packages.STEP, packages.STEP)
# Run next on cloud machines. Facts are read again after these steps, because homes, queue and accounting database may
# be on a filesystem that they mount.
MACHINE: tuple[Step, ...] = (
    software.STEP,
    imex.STEP,
    names.RESOLVER_STEP,
    names.HOST_KEY_STEP,
    system.SYSCTL_STEP,
    slurm_packages.STEP,
    packages.STEP,
    disks.SCRATCH_STEP,
    mounts.STEP,
    metadata.STEP,
    nfs_access.STEP,
    interruption.STEP,
    disks.STATE_STEP,
    job_credentials.STEP,
    logs.STEP,
)
# Run on the controller after the check of the machine: from then on, the sweep launches nodes that are missing, and
# packages for them are downloaded while they boot.
CHECKED: tuple[Step, ...] = (node_packages.STEP, power.SWEEP_STEP)
CLOUD: tuple[Step, ...] = (*KERNEL, *MACHINE, power.STEP, *CHECKED)
# Installed in images; the other steps configure and start what depends on the cluster. Those of KERNEL come first here
# too, because the machine that builds the image may have to restart after them.
BAKED: tuple[Step, ...] = tuple(dict.fromkeys(step for step in (*KERNEL, *MACHINE, *BASE) if step.bake))
EVERY: tuple[Step, ...] = (*(step for step in CLOUD if step not in ALL), *ALL)
# Cloud machines have their filesystems from steps of MACHINE.
ON_CLOUD: tuple[Step, ...] = tuple(step for step in EVERY if step not in STORAGE)


def select_steps(desired: Desired) -> tuple[Step, ...]:
    """Return the steps that this cluster's nodes go through."""
    return ALL if desired.cloud is None else ON_CLOUD


def select_after_machine(role: Role) -> tuple[Step, ...]:
    """Return the steps between MACHINE and the check of a cloud machine, in the order in which it runs them."""
    last = (power.STEP, *CONTROL, *SHIPPED) if role == "controller" else MEMBERS
    return (*(step for step in BASE if step not in MACHINE), *last)


def build_probe(node: Node, desired: Desired) -> Probe:
    """Return the probe that reads every fact that the node's steps depend on."""
    steps = select_steps(desired)
    return Probe(
        shared=desired.shared,
        homes=desired.homes,
        environment=desired.environment,
        packages=_unique(name for step in steps for name in step.packages(node)),
        units=_unique(unit for step in steps for unit in step.units),
        controller=node.role == "controller",
        machine=desired.cloud is not None,
        readings="".join(step.readings(node, desired) for step in steps),
    )


def _unique(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))
