"""Slurm's packages, if the distribution lacks the release: built once on the controller and shared by all nodes."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

from bootstrap.action import Action, digest
from bootstrap.bundle import INSTALLED
from bootstrap.desired import Desired
from bootstrap.facts.model import Facts
from bootstrap.steps.step import Step
from cluster.inventory import Node, Role

SCRIPT = (Path(__file__).parents[2] / "scripts" / "slurm-packages.sh").read_text()
# Names given by the packaging in Slurm's source, in the order of their dependencies.
NAMES: dict[Role, tuple[str, ...]] = {
    "controller": ("slurm-smd", "slurm-smd-client", "slurm-smd-slurmctld", "slurm-smd-slurmdbd"),
    "login": ("slurm-smd", "slurm-smd-client", "slurm-smd-sackd"),
    "compute": ("slurm-smd", "slurm-smd-client", "slurm-smd-slurmd"),
}
# Debian's uid of the user slurm, so that files on a shared disk have the same owner everywhere.
SLURM_UID = 64030
DEBIAN_RELEASE = "24.11"
"""Release of Slurm in Debian 13."""
BUILD_TIMEOUT_S = 3600.0


@dataclass(frozen=True)
class SlurmSource:
    """A pinned release of Slurm's source, which contains its own Debian packaging."""

    version: str
    sha256: str
    addresses: tuple[str, ...]


# The archives of the releases' tags. Debian builds its packages from the same files: the sums are in its source index.
SOURCES = {
    "24.11": SlurmSource(
        "24.11.5",
        "e1a5547edd212c38b5e3230a284133f777b32746551f094aaa81cc4af375e332",
        ("https://github.com/SchedMD/slurm/archive/refs/tags/slurm-24-11-5-1.tar.gz",),
    ),
    "26.05": SlurmSource(
        "26.05.5",
        "42cc1177e14db84a0f1407ed1e01f7d0e5e12a3cb1a12da3ce00d63e17021bb3",
        ("https://github.com/SchedMD/slurm/archive/refs/tags/slurm-26-05-5-1.tar.gz",),
    ),
}


def is_built_here(facts: Facts, desired: Desired) -> bool:
    """Return whether Slurm comes from our own build: neither the image nor the distribution has the release."""
    release = desired.spec.software.slurm
    offered = not facts.distribution.startswith("ubuntu") and release == DEBIAN_RELEASE
    installed = facts.packages.get("slurm-client", "").startswith(f"{release}.")
    return bool(facts.distribution) and not offered and not installed


def plan_slurm_packages(facts: Facts, node: Node, desired: Desired) -> list[Action]:
    """Build the packages on the controller, wait for them on the other nodes, and install those of the role."""
    source = SOURCES[desired.spec.software.slurm]
    if all(facts.packages.get(name, "").startswith(source.version) for name in NAMES[node.role]):
        return []
    key = digest(SCRIPT, source.sha256, facts.distribution)
    store = desired.cloud.package_store if desired.cloud else ()
    values = {
        "MODE": "build" if node.role == "controller" else "wait",
        "KEY": key,
        "SOURCES": " ".join(source.addresses),
        "SHA256": source.sha256,
        "FOLDER": f"{desired.shared}/.packages",
        "NAMES": " ".join(NAMES[node.role]),
        "SLURM_UID": str(SLURM_UID),
        "STORE": " ".join([*store, key] if store else ["false"]),
    }
    assignments = "".join(f"{name}={shlex.quote(value)}\n" for name, value in values.items())
    script = f"cd {INSTALLED}\n{assignments}{SCRIPT}"
    title = f"install Slurm {source.version}"
    fix = "see the log for the part that failed; an image that has Slurm needs no build"
    log = "/var/cache/muster-slurm/build.log" if node.role == "controller" else "/var/log/apt/term.log"
    return [Action(title, script, timeout=BUILD_TIMEOUT_S, log=log, fix=fix, slow=True)]


def skip(facts: Facts, node: Node, desired: Desired) -> str:
    """Skip distributions that have the release."""
    return "" if is_built_here(facts, desired) else "the distribution has this release"


def _list_packages(node: Node) -> tuple[str, ...]:
    return NAMES[node.role]


STEP = Step("slurm", "Slurm's packages, built once", plan_slurm_packages, skip=skip, packages=_list_packages)
