"""The steps of an upgrade, in the order that Slurm requires: database, controller, compute nodes, login node.

slurmdbd must be at least as new as slurmctld, and slurmctld as new as every other daemon; daemons up to three releases
older keep working, so running jobs survive (https://slurm.schedmd.com/upgrades.html).

A new srun cannot start tasks on a node with an old slurmd; an old srun works with both. So the login node comes last,
and compute nodes are upgraded from the last to the first: Slurm runs the script of a job, and with it srun, on the
first of the job's nodes, which is then not newer than the others.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from bootstrap.steps.cloud.slurm_packages import NAMES
from bootstrap.steps.daemon import DAEMONS
from cluster.inventory import Inventory, Node, Role
from slurm.config.render import ETC
from slurm.control import accounting, config

SCRIPT = (Path(__file__).parents[1] / "scripts" / "slurm-upgrade.sh").read_text()
BACKUPS = "/var/backups/muster"
STATE = "/var/lib/slurm/slurmctld"
INSTALL_TIMEOUT_S = 300.0
# The first start of a new slurmdbd converts the database: minutes for millions of jobs.
CONVERSION_TIMEOUT_S = 3600.0
START_TIMEOUT_S = 120.0
# Nodes that are upgraded at the same time, once the first one works.
BATCH = 16


@dataclass(frozen=True)
class Packaging:
    """How nodes install Slurm."""

    client: str
    """Package whose version is the installed release."""
    installer: Literal["dpkg", "apt"]
    """apt also installs dependencies, for which nodes need a mirror."""
    names: Mapping[Role, tuple[str, ...]] = field(default_factory=dict)
    """Packages to install by role; all that there are for a role that is not in it."""


# The node image has the distribution's packages, with their dependencies.
DISTRIBUTION = Packaging("slurm-client", "dpkg")
BUILT = Packaging("slurm-smd-client", "apt", NAMES)
"""Packages that the controller built from Slurm's source."""


@dataclass(frozen=True)
class PublishedPackages:
    """The packages of a release on the shared filesystem, and what they must be."""

    folder: str
    """Folder on all nodes with a folder of packages per release."""
    sums: str
    """Output of sha256sum for the packages, computed where no user of the cluster can change them."""


@dataclass(frozen=True)
class Releases:
    """The release that runs, the one to install, and where nodes find packages and keep the backup."""

    old: str
    new: str
    packages: PublishedPackages = PublishedPackages("", "")
    packaging: Packaging = DISTRIBUTION
    backups: str = BACKUPS
    """Folder on the controller."""


@dataclass(frozen=True)
class UpgradeStep:
    """One step of an upgrade, on one node or on several at the same time."""

    name: str
    nodes: tuple[Node, ...]
    title: str
    script: str
    timeout_s: float
    rejoins: bool = False
    """Whether Slurm must see the nodes with the new release before the next step."""


def plan_upgrade(inventory: Inventory, releases: Releases) -> tuple[UpgradeStep, ...]:
    """Return the steps that change a running cluster to another release."""
    old, new = releases.old, releases.new
    return (
        _control(inventory, releases, "backup", f"stop slurmctld and slurmdbd; back up database and queue of {old}"),
        _control(inventory, releases, "install", f"install Slurm {new}"),
        _control(inventory, releases, "slurmdbd", "start slurmdbd, which converts the database"),
        _control(inventory, releases, "slurmctld", "start slurmctld, which recovers the queue"),
        *_plan_nodes(inventory, releases),
    )


def plan_return(inventory: Inventory, releases: Releases) -> tuple[UpgradeStep, ...]:
    """Return the steps that take a cluster back to the backup of the older release `releases.new`."""
    restored = replace(releases, old=releases.new)
    return (
        _control(inventory, restored, "restore", "stop slurmctld and slurmdbd; restore database, queue and settings"),
        _control(inventory, restored, "install", f"install Slurm {releases.new}"),
        _control(inventory, restored, "slurmdbd", "start slurmdbd"),
        _control(inventory, restored, "slurmctld", "start slurmctld"),
        *_plan_nodes(inventory, restored),
    )


def _plan_nodes(inventory: Inventory, releases: Releases) -> list[UpgradeStep]:
    """Return the steps of all other nodes: the last compute node alone, the others in batches, the login node."""
    logins = tuple(node for node in inventory.nodes if node.role == "login")
    last_first = inventory.compute[::-1]
    first, others = last_first[:1], last_first[1:]
    batches = [others[start : start + BATCH] for start in range(0, len(others), BATCH)]
    return [_node_step(batch, releases) for batch in (first, *batches, logins) if batch]


def _control(inventory: Inventory, releases: Releases, name: str, title: str) -> UpgradeStep:
    limit_s = {"install": INSTALL_TIMEOUT_S, "slurmctld": START_TIMEOUT_S}.get(name, CONVERSION_TIMEOUT_S)
    return UpgradeStep(
        name,
        (inventory.controller,),
        title,
        _script(name, releases, "controller", limit_s),
        limit_s + START_TIMEOUT_S,
    )


def _node_step(nodes: Sequence[Node], releases: Releases) -> UpgradeStep:
    role = nodes[0].role
    (unit,) = DAEMONS[role]
    script = _script("node", releases, role, START_TIMEOUT_S, unit)
    rejoins = role == "compute"
    title = f"install Slurm {releases.new} and restart {unit}"
    return UpgradeStep("node", tuple(nodes), title, script, INSTALL_TIMEOUT_S + START_TIMEOUT_S, rejoins)


def _script(step: str, releases: Releases, role: Role, wait_s: float, unit: str = "") -> str:
    packaging = releases.packaging
    values = {
        "STEP": step,
        "FROM": releases.old,
        "TO": releases.new,
        "BACKUPS": releases.backups,
        "STATE": STATE,
        "ETC": ETC,
        "PACKAGES": releases.packages.folder,
        "SUMS": releases.packages.sums,
        "CLIENT": packaging.client,
        "INSTALLER": packaging.installer,
        "NAMES": " ".join(packaging.names.get(role, ())),
        "UNIT": unit,
        "WAIT_S": f"{wait_s:.0f}",
        "DATABASE_ANSWERS": accounting.DATABASE_ANSWERS,
        "CONTROLLER_ANSWERS": config.PING,
    }
    return "".join(f"{name}={shlex.quote(value)}\n" for name, value in values.items()) + SCRIPT
