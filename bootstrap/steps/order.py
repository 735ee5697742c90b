"""Which steps there are, and what may run at the same time."""

from __future__ import annotations

from bootstrap.desired import Desired
from bootstrap.steps import (
    accounting,
    bundle,
    compute,
    controller,
    database,
    environment,
    fabric,
    health,
    host_key,
    hosts,
    limits,
    login,
    metadata,
    mounts,
    packages,
    power,
    resolver,
    scratch,
    slurm_packages,
    software,
    ssh,
    state,
    sysctl,
    time,
    updates,
    users,
)
from bootstrap.steps.step import Step
from cluster.inventory import Role

# On all nodes at once.
BASE: tuple[Step, ...] = (
    packages.STEP,
    database.STEP,
    hosts.STEP,
    users.STEP,
    ssh.STEP,
    limits.STEP,
    time.STEP,
    fabric.STEP,
    health.STEP,
)
# On the controller, after its base.
CONTROL: tuple[Step, ...] = (accounting.STEP, controller.STEP)
# On the controller, beside everything else: nothing of Slurm needs them.
SHIPPED: tuple[Step, ...] = (bundle.STEP, environment.STEP)
# On the others, once slurmctld hands out the configuration.
MEMBERS: tuple[Step, ...] = (login.STEP, compute.STEP)

ALL: tuple[Step, ...] = (*BASE, *CONTROL, *MEMBERS, *SHIPPED)

# Of machines that set themselves up: what other targets do from outside. Facts are read again after these, because
# homes, queue and accounts may lie on what they mount.
MACHINE: tuple[Step, ...] = (
    updates.STEP,
    software.STEP,
    resolver.STEP,
    host_key.STEP,
    sysctl.STEP,
    scratch.STEP,
    mounts.STEP,
    slurm_packages.STEP,
    packages.STEP,
    metadata.STEP,
    state.STEP,
)
OWN: tuple[Step, ...] = (*MACHINE, power.STEP)
EVERY: tuple[Step, ...] = (*(step for step in OWN if step not in ALL), *ALL)


def steps(desired: Desired) -> tuple[Step, ...]:
    return ALL if desired.cloud is None else EVERY


def own(role: Role) -> tuple[Step, ...]:
    """In the order in which one machine goes through what follows MACHINE, by itself."""
    rest = (power.STEP, *CONTROL, *SHIPPED) if role == "controller" else MEMBERS
    return (*(step for step in BASE if step not in MACHINE), *rest)
