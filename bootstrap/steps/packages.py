"""Packages: the distribution packages of each role. Slurm must be the release that the spec names."""

from __future__ import annotations

from bootstrap.action import Action, install_packages
from bootstrap.desired import Desired
from bootstrap.errors import BootstrapError
from bootstrap.facts.model import Facts
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
    return [install_packages(missing, start_daemons=False)] if missing else []


def _list_required(facts: Facts, node: Node, desired: Desired) -> tuple[str, ...]:
    compiler = COMPILER if desired.interpreter else ()
    if not is_built_here(facts, desired):
        return list_packages(node) + compiler
    return tuple(name for name in list_packages(node) if name not in SLURM) + compiler


def _list_read(node: Node) -> tuple[str, ...]:
    return list_packages(node) + COMPILER


STEP = Step("packages", "distribution packages of the role", plan_packages, packages=_list_read)
