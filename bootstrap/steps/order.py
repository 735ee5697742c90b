"""Which steps there are, and what may run at the same time."""

from __future__ import annotations

from bootstrap.steps import (
    accounting,
    bundle,
    compute,
    controller,
    database,
    environment,
    fabric,
    hosts,
    limits,
    login,
    packages,
    ssh,
    time,
    users,
)
from bootstrap.steps.step import Step

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
)
# On the controller, after its base.
CONTROL: tuple[Step, ...] = (accounting.STEP, controller.STEP)
# On the controller, beside everything else: nothing of Slurm needs them.
SHIPPED: tuple[Step, ...] = (bundle.STEP, environment.STEP)
# On the others, once slurmctld hands out the configuration.
MEMBERS: tuple[Step, ...] = (login.STEP, compute.STEP)

ALL: tuple[Step, ...] = (*BASE, *CONTROL, *MEMBERS, *SHIPPED)
