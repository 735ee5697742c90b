"""What the pre-flight says about one host, by its facts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from infra.targets.hosts.claim import Claim
from infra.targets.hosts.preflight.facts import Mount
from infra.targets.hosts.preflight.judge import judge_host
from tests.infra.targets.hosts.specs import NOW, changed, subject

CLOCK_FIX = "set it: `timedatectl set-ntp true`, or `chronyc makestep`; if all hosts differ, set this machine's clock"
CLAIM = Claim("other", "theirs", "0123", "/home/bob/.muster", "9", "SHA256:K", "gpu-1", "abc", "2026-11-18T09:00:00Z")

CASES: dict[str, tuple[str, dict[str, Any], list[tuple[str, str, str]]]] = {
    "unsupported system": (
        "rack1-1",
        {"os": "rocky 9.4", "os_title": "Rocky Linux 9.4 (Blue Onyx)"},
        [
            (
                "host_os",
                "runs Rocky Linux 9.4 (Blue Onyx); allowed: Debian 12 or 13, Ubuntu 22.04 or 24.04",
                "install one of these on it, or leave it out",
            )
        ],
    ),
    "architecture": (
        "rack1-1",
        {"arch": "riscv64"},
        [("host_arch", "is a machine of type riscv64; allowed: x86_64, aarch64", "leave it out")],
    ),
    "no systemd": (
        "rack1-1",
        {"init": "tini"},
        [
            (
                "host_init",
                "process 1 is tini; allowed: systemd, which runs Slurm's daemons",
                "start the machine with systemd",
            )
        ],
    ),
    "sudo needs a password": (
        "rack1-1",
        {"root": False, "root_error": "sudo: a password is required"},
        [
            (
                "host_sudo",
                "the user cannot become root (sudo: a password is required)",
                "log in as root, or allow the user `NOPASSWD: ALL` in a file in /etc/sudoers.d",
            )
        ],
    ),
    "sshd without the folder of settings": (
        "rack1-1",
        {"sshd_includes": False},
        [
            (
                "host_sshd",
                "sshd does not read /etc/ssh/sshd_config.d, where muster lets the cluster's key log in",
                "write `Include /etc/ssh/sshd_config.d/*.conf` as the first line of /etc/ssh/sshd_config",
            )
        ],
    ),
    "old Python": (
        "rack1-1",
        {"python": "3.6.8"},
        [
            (
                "host_python",
                "python3 is 3.6.8; allowed: 3.9 or later, or none (it is installed)",
                "make the distribution's own python3 the first in root's PATH",
            )
        ],
    ),
    "no Python": ("rack1-1", {"python": ""}, []),
    "full disks": (
        "rack1-1",
        {"free_mb": {"/": 4_900, "/shared": 1_000}},
        [
            (
                "host_disk",
                "/ has 4.9 GB free; allowed: 5 GB or more",
                "free space there (`du -xh / | sort -h | tail` shows what uses it)",
            ),
            (
                "host_disk",
                "/shared has 1.0 GB free; allowed: 20 GB or more",
                "free space there (`du -xh /shared | sort -h | tail` shows what uses it)",
            ),
        ],
    ),
    "the controller needs more space": (
        "head",
        {"free_mb": {"/": 9_900}},
        [
            (
                "host_disk",
                "/ has 9.9 GB free; allowed: 10 GB or more",
                "free space there (`du -xh / | sort -h | tail` shows what uses it)",
            )
        ],
    ),
    "clock ahead, on a host that took half a minute to answer": (
        "rack1-1",
        {"clock": NOW + 3571, "clock_at_end": NOW + 3601},
        [
            (
                "host_clock",
                "its clock is 3600 s ahead; allowed: 5 s",
                CLOCK_FIX,
            )
        ],
    ),
    "clock behind, on a host that took half a minute to answer": (
        "rack1-1",
        {"clock": NOW - 61, "clock_at_end": NOW - 31},
        [
            (
                "host_clock",
                "its clock is 60 s behind; allowed: 5 s",
                CLOCK_FIX,
            )
        ],
    ),
    "clock within the tolerance": ("rack1-1", {"clock": NOW + 5.5, "clock_at_end": NOW + 5.9}, []),
    "node of another cluster of ours": (
        "rack1-1",
        {"muster": True, "active": frozenset({"slurmd"}), "ports": frozenset({6818})},
        [
            (
                "host_taken",
                "is or was a node of a muster cluster (/etc/muster exists)",
                "remove that cluster with `muster teardown` where it was created; if it was given back already, "
                "move /etc/muster away; or leave the host out",
            )
        ],
    ),
    "node of another Slurm cluster": (
        "rack1-1",
        {"active": frozenset({"slurmd", "munge"}), "ports": frozenset({6818})},
        [
            (
                "host_slurm",
                "already belongs to a Slurm cluster (slurmd active)",
                "remove it from that cluster, stop its daemons and move /etc/slurm away; or leave the host out",
            )
        ],
    ),
    "configuration of another Slurm cluster": (
        "rack1-1",
        {"files": frozenset({"/etc/slurm/slurm.conf"})},
        [
            (
                "host_slurm",
                "already belongs to a Slurm cluster (/etc/slurm/slurm.conf exists)",
                "remove it from that cluster, stop its daemons and move /etc/slurm away; or leave the host out",
            )
        ],
    ),
    "another release of Slurm": (
        "rack1-1",
        {"slurm": "22.05.8"},
        [
            (
                "host_slurm_release",
                "has Slurm 22.05.8; allowed: none, or 26.05 (software.slurm)",
                "remove its packages, or change `software: {slurm: ...}`",
            )
        ],
    ),
    "the same release of Slurm": ("rack1-1", {"slurm": "26.05.5"}, []),
    "a release that the distribution does not have": (
        "rack1-1",
        {"slurm": ""},
        [
            (
                "host_slurm_source",
                "has no Slurm 26.05, and its distribution does not offer it; allowed: Slurm 24.11 on Debian 13, "
                "or packages that are installed already",
                "install packages of Slurm 26.05 on all hosts, or write `software: {slurm: '24.11'}` on Debian 13",
            )
        ],
    ),
    "claimed by another cluster": (
        "rack1-1",
        {"muster": True, "claim": CLAIM.render(), "active": frozenset({"slurmd"})},
        [
            (
                "host_taken",
                "belongs to cluster other (stack theirs, MUSTER_HOME /home/bob/.muster)",
                "run `muster teardown --stack theirs` there, or leave the host out",
            )
        ],
    ),
    "a database on the controller": (
        "head",
        {"active": frozenset({"mariadb"})},
        [
            (
                "host_database",
                "runs a database (mariadb); the controller configures MariaDB for Slurm's accounting",
                "name another host as the controller, or move the database",
            )
        ],
    ),
    "a database on a compute node": ("rack1-1", {"active": frozenset({"mariadb"})}, []),
    "port in use on the controller": (
        "head",
        {"ports": frozenset({22, 3306, 6818})},
        [
            (
                "host_port",
                "port 3306, which MariaDB needs, is in use",
                "stop the program that `ss -ltnp sport = :3306` shows",
            )
        ],
    ),
    "port in use on a compute node": (
        "rack1-1",
        {"ports": frozenset({22, 3306, 6818})},
        [
            (
                "host_port",
                "port 6818, which slurmd needs, is in use",
                "stop the program that `ss -ltnp sport = :6818` shows",
            )
        ],
    ),
    "uid of somebody else": (
        "rack1-1",
        {"accounts": frozenset({("ubuntu", 2000, "")})},
        [
            (
                "host_account",
                "has the account 'ubuntu' with uid 2000; the spec has 'muster' with uid 2000",
                "change `users.muster`, or the account on the host",
            )
        ],
    ),
    "name with another uid": (
        "rack1-1",
        {"accounts": frozenset({("muster", 1000, "muster")})},
        [
            (
                "host_account",
                "has the account 'muster' with uid 1000; the spec has 'muster' with uid 2000",
                "change `users.muster`, or the account on the host",
            )
        ],
    ),
    "an account of ours": ("rack1-1", {"accounts": frozenset({("muster", 2000, "muster")})}, []),
    "an account of the owner": (
        "rack1-1",
        {"accounts": frozenset({("muster", 2000, "Me,,,")})},
        [
            (
                "host_account",
                "has an account 'muster' of its own, which muster would take over; allowed: none",
                "give `users.muster` another name and uid, or remove the account on the host",
            )
        ],
    ),
    "a claim that cannot be read": (
        "rack1-1",
        {"muster": True, "claim": "{"},
        [
            (
                "host_taken",
                "is claimed, but /var/lib/muster/record/claim cannot be read",
                "restore the file, or leave the host out",
            )
        ],
    ),
    "nothing mounted": (
        "rack1-1",
        {"mounts": {}},
        [
            (
                "host_mount",
                "nothing is mounted at /shared",
                "mount the shared filesystem at /shared, with a line in /etc/fstab so that it is there after a restart",
            )
        ],
    ),
    "mount that does not answer": (
        "rack1-1",
        {"hanging": frozenset({"/shared"})},
        [
            (
                "host_mount",
                "/shared (nas:/export) does not answer",
                "check the file server, and the network between it and the host",
            )
        ],
    ),
    "read-only mount": (
        "rack1-1",
        {"mounts": {"/shared": Mount("nas:/export", "nfs4", read_only=True)}},
        [
            (
                "host_mount",
                "/shared (nas:/export) is mounted read-only; allowed: read-write",
                "run `mount -o remount,rw /shared` and correct /etc/fstab",
            )
        ],
    ),
}


def test_the_release_of_the_distribution_is_installed() -> None:
    data = changed(software={"slurm": "24.11"})
    assert list(judge_host(subject("rack1-1", data, slurm=""))) == []
    assert [p.code for p in judge_host(subject("rack1-1", data, slurm="", os="debian 12"))] == ["host_slurm_source"]


def test_what_muster_has_put_on_its_own_host_is_no_problem() -> None:
    facts = {
        "muster": True,
        "active": frozenset({"slurmctld", "slurmdbd", "mariadb"}),
        "files": frozenset({"/etc/slurm/slurm.conf"}),
        "ports": frozenset({6817, 6819}),
        "free_mb": {"/": 100, "/shared": 100},
        # Somebody has changed the comment since.
        "accounts": frozenset({("muster", 2000, "Me,,,")}),
    }
    assert list(judge_host(replace(subject("head", **facts), ours=True))) == []
    assert {p.code for p in judge_host(subject("head", **facts))} == {"host_taken", "host_disk", "host_account"}


def test_a_calm_host_has_no_problem() -> None:
    assert [list(judge_host(subject(host))) for host in ("head", "rack1-1", "rack1-2")] == [[], [], []]


@pytest.mark.parametrize("title", CASES)
def test_host(title: str) -> None:
    host, facts, expected = CASES[title]
    assert [(p.code, p.message, p.fix) for p in judge_host(subject(host, **facts))] == expected


@pytest.mark.parametrize("system", ["debian 12", "debian 13", "ubuntu 22.04", "ubuntu 24.04"])
def test_supported_systems(system: str) -> None:
    assert list(judge_host(subject(os=system))) == []
