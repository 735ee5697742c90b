"""Packages: those of each role, of the steps on a cloud machine, and Slurm's own, all installed in one transaction.

Each transaction reads the package lists and runs triggers, which machines with GPUs would spend their first minutes on.
Slurm must be the release that the spec names.
"""

from __future__ import annotations

from dataclasses import replace

from bootstrap.action import Action, install_packages
from bootstrap.desired import Desired
from bootstrap.errors import BootstrapError
from bootstrap.facts.model import Facts
from bootstrap.steps.cloud import disks, metadata, mounts, slurm_packages
from bootstrap.steps.cloud.slurm_packages import is_built_here
from bootstrap.steps.step import Step
from cluster.inventory import Node, Role

COMMON = ("openssh-server", "sudo", "iproute2", "procps", "python3", "python3-venv", "ca-certificates", "slurm-client")
BY_ROLE: dict[Role, tuple[str, ...]] = {
    "controller": ("slurmctld", "slurmdbd", "slurm-wlm-mysql-plugin", "mariadb-server"),
    "login": ("sackd",),
    "compute": ("slurmd",),
}
# Built by the controller if the distribution's release of Slurm does not match the spec.
SLURM = frozenset({"slurm-client", "slurmctld", "slurmdbd", "slurm-wlm-mysql-plugin", "sackd", "slurmd"})
# torch.compile builds C and C++ code on the nodes, against the headers of the pinned interpreter.
COMPILER = ("g++",)


def list_packages(node: Node) -> tuple[str, ...]:
    """Return the packages of a node's role, on a distribution that has the right release of Slurm."""
    return COMMON + BY_ROLE[node.role]


def plan_packages(facts: Facts, node: Node, desired: Desired) -> list[Action]:
    """Install missing packages; raise BootstrapError if another release of Slurm is installed."""
    release = desired.spec.software.slurm
    installed = facts.packages.get("slurm-client", "")
    if installed and not installed.startswith(f"{release}."):
        raise BootstrapError(
            node.name,
            "packages",
            f"Slurm {installed} is installed, but software.slurm is {release}",
            fix=f"finish an interrupted upgrade with `muster upgrade`; otherwise use an image with Slurm {release}",
        )
    missing = [name for name in _list_required(facts, node, desired) if name not in facts.packages]
    if is_built_here(facts, desired) and not slurm_packages.is_installed(facts, node, desired):
        return [_install_with_slurm(missing, slurm_packages.NAMES[node.role])]
    return [install_packages(missing)] if missing else []


def _install_with_slurm(missing: list[str], slurm: tuple[str, ...]) -> Action:
    """Return the action that installs packages of the distribution together with those that are built here."""
    files = [f"{slurm_packages.PACKAGES}/{name}_*.deb" for name in slurm]
    action = install_packages([*missing, *files])
    then = f"\napt-mark hold {' '.join(slurm)}\nrm -rf {slurm_packages.PACKAGES}"
    return replace(action, title=f"install {' '.join([*missing, *slurm])}", script=action.script + then)


def _list_required(facts: Facts, node: Node, desired: Desired) -> tuple[str, ...]:
    distributed = list_packages(node)
    if is_built_here(facts, desired):
        distributed = tuple(name for name in distributed if name not in SLURM)
    compiler = COMPILER if desired.interpreter else ()
    return (*distributed, *compiler, *_list_of_cloud_steps(facts, node, desired))


def _list_of_cloud_steps(facts: Facts, node: Node, desired: Desired) -> tuple[str, ...]:
    """Return the packages that later steps of a cloud machine need."""
    return (
        *(() if disks.skip_scratch(facts, node, desired) else disks.SCRATCH_PACKAGES),
        *(() if mounts.skip(facts, node, desired) else mounts.list_clients(desired)),
        *(() if metadata.skip(facts, node, desired) else (metadata.PACKAGE,)),
    )


def _list_read(node: Node) -> tuple[str, ...]:
    return list_packages(node) + COMPILER


STEP = Step("packages", "packages of the role", plan_packages, packages=_list_read)
