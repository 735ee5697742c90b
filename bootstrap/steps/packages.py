"""packages: what the role needs from the distribution; Slurm must be the release the spec names."""

from __future__ import annotations

from bootstrap.action import Action
from bootstrap.desired import Desired
from bootstrap.errors import BootstrapError
from bootstrap.facts.model import Facts
from bootstrap.steps import lustre, metadata, scratch, slurm_packages
from bootstrap.steps.step import Step
from cluster.inventory import Node, Role

COMMON = ("openssh-server", "sudo", "iproute2", "procps", "python3", "python3-venv", "ca-certificates", "slurm-client")
BY_ROLE: dict[Role, tuple[str, ...]] = {
    "controller": ("slurmctld", "slurmdbd", "slurm-wlm-mysql-plugin", "mariadb-server"),
    "login": ("sackd",),
    "compute": ("slurmd",),
}
# Ours to build where the distribution's release does not fit.
SLURM = frozenset({"slurm-client", "slurmctld", "slurmdbd", "slurm-wlm-mysql-plugin", "sackd", "slurmd"})
# For the training environment, where the distribution's own Python is too old.
PYTHON: dict[str, tuple[str, ...]] = {"ubuntu 22.04": ("python3.11-venv",)}
APT_S = 900.0


def packages(node: Node) -> tuple[str, ...]:
    return COMMON + BY_ROLE[node.role]


def own_packages(node: Node) -> tuple[str, ...]:
    """What else is asked about on a machine that sets itself up; a pattern stands for all that fit."""
    python = tuple(name for names in PYTHON.values() for name in names)
    others = (metadata.NEEDED, "nfs-common", "stunnel4", f"{lustre.MODULES}-*")
    return (*slurm_packages.NAMES[node.role], *scratch.NEEDED, *python, *others)


def actions(facts: Facts, node: Node, desired: Desired) -> list[Action]:
    wanted = desired.spec.software.slurm
    found = facts.packages.get("slurm-client", "")
    if found and not found.startswith(f"{wanted}."):
        raise BootstrapError(
            node.name,
            "packages",
            f"Slurm {found} is installed, but software.slurm asks for {wanted}",
            fix=f"use an image or distribution with Slurm {wanted} (Debian 13 has it)",
        )
    missing = [name for name in _wanted(facts, node) if name not in facts.packages]
    if not missing:
        return []
    names = " ".join(missing)
    script = (
        "export DEBIAN_FRONTEND=noninteractive\n"
        # A package that starts an unconfigured daemon would hold up the installation.
        "printf '#!/bin/sh\\nexit 101\\n' > /usr/sbin/policy-rc.d; chmod +x /usr/sbin/policy-rc.d\n"
        "trap 'rm -f /usr/sbin/policy-rc.d' EXIT\n"
        f"apt-get -q update && apt-get -q install -y --no-install-recommends {names}"
    )
    fix = "give the node a way to its package mirror (network.egress), or an image that has the packages"
    return [Action(f"install {names}", script, timeout=APT_S, log="/var/log/apt/term.log", fix=fix, slow=True)]


def _wanted(facts: Facts, node: Node) -> tuple[str, ...]:
    if not slurm_packages.built_here(facts):
        return packages(node)
    return tuple(name for name in packages(node) if name not in SLURM) + PYTHON.get(facts.distribution, ())


STEP = Step("packages", "distribution packages of the role", actions)
