"""Packages: those of each role, of the steps on a cloud machine, and Slurm, all installed in one transaction.

Each transaction reads the package lists and runs triggers, which machines with GPUs would spend their first minutes on.
Slurm must be the release that the spec names.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from bootstrap.action import Action, install_packages
from bootstrap.changes import DATABASE_STATE, SLURM_STATE
from bootstrap.desired import Desired
from bootstrap.facts.model import Facts
from bootstrap.image_contents import ImageContents
from bootstrap.steps.cloud import disks, lustre_client, mounts, slurm_packages
from bootstrap.steps.step import Step
from cluster.inventory import Node, Role
from cluster.spec import Fabric

COMMON = (
    "openssh-server",
    "sudo",
    "iproute2",
    "procps",
    "python3",
    "python3-venv",
    "ca-certificates",
    "nftables",
    "slurm-client",
)
BY_ROLE: dict[Role, tuple[str, ...]] = {
    "controller": ("slurmctld", "slurmdbd", "slurm-wlm-mysql-plugin", "mariadb-server"),
    "login": ("sackd",),
    "compute": ("slurmd", "libpam-slurm-adopt", "crun"),
}
# Verbs and their drivers, which NCCL loads; perftest for the fabric job, and the tools that show the subnet.
BY_FABRIC: dict[Fabric, tuple[str, ...]] = {
    "infiniband": ("rdma-core", "ibverbs-providers", "perftest", "infiniband-diags"),
    "roce": ("rdma-core", "ibverbs-providers", "perftest"),
}
# Built by the controller if the distribution's release of Slurm does not match the spec.
SLURM = frozenset(
    {"slurm-client", *(name for names in BY_ROLE.values() for name in names)} - {"mariadb-server", "crun"}
)
# Written by the scripts of MariaDB's packages, which do not remove it.
DATABASE_FILES = ("/etc/mysql/debian.cnf",)
# A later step starts slurmd and enables it: it must not start before, when the machine restarts with another kernel.
KEEP_SLURMD_STOPPED = "rm -f /etc/systemd/system/multi-user.target.wants/slurmd.service"
# torch.compile builds C and C++ code on the nodes, against the headers of the pinned interpreter.
COMPILER = ("g++",)


def list_packages(node: Node) -> tuple[str, ...]:
    """Return the packages of a node's role and fabric, on a distribution that has the right release of Slurm."""
    return COMMON + BY_ROLE[node.role] + BY_FABRIC.get(node.fabric, ())


def plan_packages(facts: Facts, node: Node, desired: Desired) -> list[Action]:
    """Install missing packages; raise BootstrapError if another release of Slurm is installed."""
    release = desired.spec.software.slurm
    slurm_packages.check_installed_release(facts, node, release)
    lustre = not lustre_client.skip(facts, node, desired)
    # Nodes with Lustre need package lists anyway, so that their controllers store no archive.
    archive = bool(desired.cloud and desired.cloud.package_store) and node.role != "controller" and not lustre
    required = _list_required(facts, node, desired)
    return _install(facts, required, [node.role], release, lustre=lustre, archive=archive)


def list_of_roles(facts: Facts, roles: Iterable[Role], desired: Desired) -> tuple[str, ...]:
    """Return the distribution's packages that new machines of these roles may lack, on the distribution of `facts`."""
    names = (*COMMON, *(name for role in roles for name in BY_ROLE[role]))
    distributed = _choose_distributed(facts, desired.spec.software.slurm, names)
    compiler = COMPILER if desired.interpreter else ()
    return (*distributed, *compiler, *disks.SCRATCH_PACKAGES, *mounts.list_clients(mounts.list_kinds(desired)))


def bake_packages(facts: Facts, contents: ImageContents) -> list[Action]:
    """Install what nodes of all roles of an image need, also for disks that the machine that builds it lacks."""
    roles = tuple(name for role in contents.roles for name in BY_ROLE[role])
    distributed = _choose_distributed(facts, contents.slurm, (*COMMON, *roles))
    if not contents.cloud:
        return _install(facts, distributed, contents.roles, contents.slurm, lustre=False)
    cloud = (*disks.SCRATCH_PACKAGES, *mounts.list_clients(contents.filesystems))
    lustre = "lustre" in contents.filesystems
    return _install(facts, (*distributed, *COMPILER, *cloud), contents.roles, contents.slurm, lustre=lustre)


def _install(  # noqa: PLR0913  # machines and images decide each of these differently
    facts: Facts, required: Sequence[str], roles: Sequence[Role], release: str, *, lustre: bool, archive: bool = False
) -> list[Action]:
    """Return the action that installs what is missing, with the Lustre client and the Slurm that is built here."""
    missing = [name for name in required if name not in facts.packages]
    files: list[str] = []
    slurm: tuple[str, ...] = ()
    then = ""
    kernel = lustre_client.read_choice(facts) if lustre else ""
    if kernel:
        missing += lustre_client.list_kernel_packages(kernel)
    elif lustre and lustre_client.name_client(facts) not in facts.packages:
        missing.append(lustre_client.name_client(facts))
        then += f"\n{lustre_client.finish_client(facts)}"
    if slurm_packages.needs_build(facts, release) and not slurm_packages.is_installed(facts, roles, release):
        slurm = slurm_packages.list_names(roles)
        files = [f"{slurm_packages.PACKAGES}/{name}_*.deb" for name in slurm]
        then += f"\napt-mark hold {' '.join(slurm)}\nrm -rf {slurm_packages.PACKAGES}"
    if kernel:
        then += f"\n{KEEP_SLURMD_STOPPED}\n{lustre_client.render_switch(facts, kernel)}"
    if not (missing or files):
        return []
    # An image can have an earlier version of Slurm's release, which is held.
    options = ["--allow-change-held-packages"] if files else []
    database = "controller" in roles
    action = install_packages(
        [*missing, *files],
        *options,
        files=DATABASE_FILES if database else (),
        trees=(SLURM_STATE, DATABASE_STATE) if database else (SLURM_STATE,),
        archive=archive,
    )
    return [replace(action, title=f"install {' '.join([*missing, *slurm])}", script=action.script + then)]


def _list_required(facts: Facts, node: Node, desired: Desired) -> tuple[str, ...]:
    distributed = _choose_distributed(facts, desired.spec.software.slurm, list_packages(node))
    compiler = COMPILER if desired.interpreter else ()
    return (*distributed, *compiler, *_list_of_cloud_steps(facts, node, desired))


def _choose_distributed(facts: Facts, release: str, names: Iterable[str]) -> tuple[str, ...]:
    """Return the packages that the distribution has: without Slurm's if that is built here."""
    built = SLURM if slurm_packages.needs_build(facts, release) else frozenset[str]()
    return tuple(name for name in dict.fromkeys(names) if name not in built)


def _list_of_cloud_steps(facts: Facts, node: Node, desired: Desired) -> tuple[str, ...]:
    """Return the packages that later steps of a cloud machine need."""
    return (
        *(() if disks.skip_scratch(facts, node, desired) else disks.SCRATCH_PACKAGES),
        *(() if mounts.skip(facts, node, desired) else mounts.list_clients(mounts.list_kinds(desired))),
    )


def _list_read(node: Node) -> tuple[str, ...]:
    return list_packages(node) + COMPILER


STEP = Step("packages", "packages of the role", plan_packages, packages=_list_read, bake=bake_packages)
