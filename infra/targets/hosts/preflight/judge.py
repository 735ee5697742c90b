"""Judge the facts of one host by the node that it becomes. Pure functions; each yields what is wrong, with the fix."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from bootstrap.steps.users import OUR_COMMENT
from cluster.catalog.software import components, find_faults
from cluster.inventory import Role
from cluster.plural import format_count
from cluster.spec import ClusterSpec
from cluster.spec.issue import Level
from infra.targets.hosts.assign import Assignment
from infra.targets.hosts.claim import GIVEN_BACK, ClaimError, parse_claim
from infra.targets.hosts.nfs import KIND as NFS
from infra.targets.hosts.preflight.facts import MachineFacts

SUPPORTED = ("debian 12", "debian 13", "ubuntu 22.04", "ubuntu 24.04")
SUPPORTED_WORDS = "Debian 12 or 13, Ubuntu 22.04 or 24.04"
ARCHITECTURES = ("x86_64", "aarch64")
OLDEST_PYTHON = (3, 9)
# Packages, and on the controller the build of Slurm and the accounting database.
ROOT_FREE_MB: dict[Role, int] = {"controller": 10_000, "login": 5_000, "compute": 5_000}
# The training environment, with every library of CUDA.
SHARED_FREE_MB = 20_000
# Slurm's credentials expire after 10 s (AuthInfo=cred_expire).
MAX_SKEW_S = 5.0
PORTS: dict[Role, dict[int, str]] = {
    "controller": {6817: "slurmctld", 6819: "slurmdbd", 3306: "MariaDB"},
    "login": {},
    "compute": {6818: "slurmd"},
}
# Systems whose own packages have a release of Slurm.
DISTRIBUTED = (("debian 13", "24.11"),)
DISTRIBUTED_WORDS = "Slurm 24.11 on Debian 13, or packages that are installed already"
SLURM_UNITS = frozenset({"slurmctld", "slurmdbd", "slurmd", "sackd"})
DRIVER = "driver"


@dataclass(frozen=True)
class Problem:
    """Something about a host that stops `up`, or that its owner should know."""

    level: Level
    code: str
    message: str
    fix: str


@dataclass(frozen=True)
class Subject:
    """A host to judge."""

    spec: ClusterSpec
    assigned: Assignment
    facts: MachineFacts
    asked_at: float
    """This machine's time before the script was sent, in seconds since the epoch."""
    answered_at: float
    ours: bool = False
    """Whether the host belongs to this cluster already, so that what muster has put there is no problem."""


def judge_host(subject: Subject) -> Iterator[Problem]:
    """Yield every problem of a host."""
    for rule in RULES:
        yield from rule(subject)


def check_system(subject: Subject) -> Iterator[Problem]:
    """Refuse systems that bootstrap cannot set up."""
    facts = subject.facts
    if facts.os not in SUPPORTED:
        message = f"runs {facts.os_title or facts.os or 'an unknown system'}; allowed: {SUPPORTED_WORDS}"
        yield _error("host_os", message, "install one of these on it, or leave it out")
    elif facts.arch not in ARCHITECTURES:
        message = f"is a machine of type {facts.arch}; allowed: {', '.join(ARCHITECTURES)}"
        yield _error("host_arch", message, "leave it out")
    if facts.init != "systemd":
        message = f"process 1 is {facts.init or 'unknown'}; allowed: systemd, which runs Slurm's daemons"
        yield _error("host_init", message, "start the machine with systemd")


def check_root(subject: Subject) -> Iterator[Problem]:
    """Require root without a password."""
    if not subject.facts.root:
        message = f"the user cannot become root ({subject.facts.root_error or 'sudo failed'})"
        fix = "log in as root, or allow the user `NOPASSWD: ALL` in a file in /etc/sudoers.d"
        yield _error("host_sudo", message, fix)


def check_sshd(subject: Subject) -> Iterator[Problem]:
    """Require that sshd reads the file by which muster lets the cluster's key log in."""
    if not subject.facts.sshd_includes:
        message = "sshd does not read /etc/ssh/sshd_config.d, where muster lets the cluster's key log in"
        fix = "write `Include /etc/ssh/sshd_config.d/*.conf` as the first line of /etc/ssh/sshd_config"
        yield _error("host_sshd", message, fix)


def check_python(subject: Subject) -> Iterator[Problem]:
    """Refuse a Python that is too old; a missing one is installed."""
    version = subject.facts.python
    if version and tuple(map(int, version.split(".")[:2])) < OLDEST_PYTHON:
        oldest = ".".join(map(str, OLDEST_PYTHON))
        message = f"python3 is {version}; allowed: {oldest} or later, or none (it is installed)"
        yield _error("host_python", message, "make the distribution's own python3 the first in root's PATH")


def check_space(subject: Subject) -> Iterator[Problem]:
    """Require free space for packages, and on shared filesystems for the training environment."""
    if subject.ours:
        return
    needed = {"/": ROOT_FREE_MB[subject.assigned.role]} | dict.fromkeys(_list_mounts(subject.spec)[:1], SHARED_FREE_MB)
    for path, least in needed.items():
        free = subject.facts.free_mb.get(path)
        if free is not None and free < least and (path == "/" or path in subject.facts.mounts):
            message = f"{path} has {free / 1000:.1f} GB free; allowed: {least / 1000:.0f} GB or more"
            yield _error(
                "host_disk", message, f"free space there (`du -xh {path} | sort -h | tail` shows what uses it)"
            )


def check_clock(subject: Subject) -> Iterator[Problem]:
    """Refuse a clock that differs from this machine's by more than Slurm's credentials tolerate."""
    ahead = subject.facts.clock_at_end - subject.answered_at
    behind = subject.asked_at - subject.facts.clock
    skew = max(ahead, behind)
    if skew > MAX_SKEW_S:
        message = f"its clock is {skew:.0f} s {'ahead' if ahead > behind else 'behind'}; allowed: {MAX_SKEW_S:.0f} s"
        fix = "set it: `timedatectl set-ntp true`, or `chronyc makestep`; if all hosts differ, set this machine's clock"
        yield _error("host_clock", message, fix)


def check_slurm(subject: Subject) -> Iterator[Problem]:
    """Refuse a host that is part of another cluster, or has another release of Slurm."""
    facts, release = subject.facts, subject.spec.software.slurm
    active = sorted(SLURM_UNITS & facts.active)
    if subject.ours:
        return
    try:
        claim = parse_claim(facts.claim)
    except ClaimError as error:
        yield _error("host_taken", f"is claimed, but {error}", "restore the file, or leave the host out")
        return
    if claim:
        message = f"belongs to cluster {claim.cluster} (stack {claim.stack}, MUSTER_HOME {claim.home_path})"
        fix = f"run `muster teardown --stack {claim.stack}` there, or leave the host out"
        yield _error("host_taken", message, fix)
    elif facts.muster:
        message = "is or was a node of a muster cluster (/etc/muster exists)"
        fix = f"remove that cluster with `muster teardown` where it was created; {GIVEN_BACK}"
        yield _error("host_taken", message, fix)
    elif active or facts.files:
        what = f"{', '.join(active)} active" if active else f"{', '.join(sorted(facts.files))} exists"
        message = f"already belongs to a Slurm cluster ({what})"
        fix = "remove it from that cluster, stop its daemons and move /etc/slurm away; or leave the host out"
        yield _error("host_slurm", message, fix)
    elif facts.slurm and not facts.slurm.startswith(f"{release}."):
        message = f"has Slurm {facts.slurm}; allowed: none, or {release} (software.slurm)"
        yield _error("host_slurm_release", message, "remove its packages, or change `software: {slurm: ...}`")
    elif not facts.slurm and (facts.os, release) not in DISTRIBUTED and facts.os in SUPPORTED:
        message = f"has no Slurm {release}, and its distribution does not offer it; allowed: {DISTRIBUTED_WORDS}"
        fix = f"install packages of Slurm {release} on all hosts, or write `software: {{slurm: '24.11'}}` on Debian 13"
        yield _error("host_slurm_source", message, fix)


def check_ports(subject: Subject) -> Iterator[Problem]:
    """Refuse ports in use that the daemons of the role need; an existing Slurm is reported as such."""
    if subject.ours or subject.facts.muster or SLURM_UNITS & subject.facts.active:
        return
    databases = sorted({"mariadb", "mysql"} & subject.facts.active)
    if databases and subject.assigned.role == "controller":
        message = f"runs a database ({', '.join(databases)}); the controller configures MariaDB for Slurm's accounting"
        yield _error("host_database", message, "name another host as the controller, or move the database")
    for port, daemon in PORTS[subject.assigned.role].items():
        if port in subject.facts.ports:
            message = f"port {port}, which {daemon} needs, is in use"
            yield _error("host_port", message, f"stop the program that `ss -ltnp sport = :{port}` shows")


def check_accounts(subject: Subject) -> Iterator[Problem]:
    """Refuse accounts that have the name or the uid of a user, unless muster has added them."""
    for name, user in subject.spec.users.items():
        for existing, uid, comment in sorted(subject.facts.accounts):
            if (existing == name) != (uid == user.uid):
                message = f"has the account '{existing}' with uid {uid}; the spec has '{name}' with uid {user.uid}"
                fix = f"change `users.{name}`, or the account on the host"
                yield _error("host_account", message, fix)
            elif existing == name and comment != OUR_COMMENT and not subject.ours:
                message = f"has an account '{name}' of its own, which muster would take over; allowed: none"
                fix = f"give `users.{name}` another name and uid, or remove the account on the host"
                yield _error("host_account", message, fix)


def check_mounts(subject: Subject) -> Iterator[Problem]:
    """Require the shared filesystems, writable."""
    for path in _list_mounts(subject.spec):
        mount = subject.facts.mounts.get(path)
        if mount is None:
            fix = (
                f"mount the shared filesystem at {path}, with a line in /etc/fstab so that it is there after a restart"
            )
            yield _error("host_mount", f"nothing is mounted at {path}", fix)
        elif path in subject.facts.hanging:
            message = f"{path} ({mount.source}) does not answer"
            yield _error("host_mount", message, "check the file server, and the network between it and the host")
        elif mount.read_only:
            message = f"{path} ({mount.source}) is mounted read-only; allowed: read-write"
            yield _error("host_mount", message, f"run `mount -o remount,rw {path}` and correct /etc/fstab")


def check_gpus(subject: Subject) -> Iterator[Problem]:
    """Require the group's GPUs, with a driver that the training environment can use."""
    facts, group = subject.facts, subject.assigned.group
    required = subject.spec.groups[group].gpus.count if group else 0
    if not required:
        return
    if facts.gpus < required:
        message = f"has {format_count(facts.gpus, 'NVIDIA GPU')}; groups.{group}.gpus.count is {required}"
        yield _error("host_gpus", message, f"write `gpus: {{count: {facts.gpus}}}`, or leave the host out")
    elif not facts.driver:
        loaded = "; nouveau is loaded instead" if "nouveau" in facts.modules else ""
        message = f"has {format_count(facts.gpus, 'NVIDIA GPU')}, but not their driver{loaded}"
        yield _error(
            "host_driver", message, f"install the NVIDIA driver {components()[DRIVER].least} or later, and restart"
        )
    elif faults := find_faults([components()[DRIVER]], {DRIVER: facts.driver}):
        yield _error("host_driver", f"has {faults[0]}", "install a newer driver, and restart")
    elif len(facts.gpu_models) < facts.gpus:
        message = f"the driver has only {len(facts.gpu_models)} of {format_count(facts.gpus, 'GPU')}"
        yield _error("host_driver", message, "look for Xid errors in `dmesg`; a GPU may have failed")
    elif facts.gpus > required:
        message = (
            f"has {format_count(facts.gpus, 'NVIDIA GPU')}, of which Slurm uses {required} (groups.{group}.gpus.count)"
        )
        yield Problem("warning", "host_gpus_unused", message, f"write `gpus: {{count: {facts.gpus}}}` to use all")


RULES: tuple[Callable[[Subject], Iterator[Problem]], ...] = (
    check_system,
    check_root,
    check_sshd,
    check_python,
    check_space,
    check_clock,
    check_slurm,
    check_ports,
    check_accounts,
    check_mounts,
    check_gpus,
)


def _error(code: str, message: str, fix: str) -> Problem:
    return Problem("error", code, message, fix)


def _list_mounts(spec: ClusterSpec) -> list[str]:
    """Return the mount points of filesystems that the owner mounts, the one with environments and jobs first."""
    mounts = (storage.mount for storage in spec.storage.values() if storage.kind != NFS)
    return sorted(mounts, key=lambda mount: (mount != "/shared", mount))
