"""Preflight: each problem of a machine has its own message and fix, and all problems are reported together."""

from __future__ import annotations

from pathlib import Path

import pytest

from setup import pins
from setup.facts import Disk, Engine, Facts
from setup.preflight import DISK_GB, MACHINES, PULUMI_BUILD_GB, find_problems
from tests.setup.machine import ALL, machine, one_disk

REPO = Path(__file__).parents[2]
NETWORK_FIX = "check the network and the proxy settings (http_proxy, https_proxy), then run this again"
GO_FIX = "install Go 1.25.11 or newer, or Pulumi 3.259.0 or newer, below 4.0.0"
REMOTE_FIX = "use this machine's own engine: `unset DOCKER_HOST`, `docker context use default`"
TABLE: dict[str, tuple[Facts, str, str]] = {
    "not Linux": (
        machine(system="Darwin", machine="arm64", memory_mb=0),
        "this is Darwin; the nodes need a Linux kernel",
        "run it on a Linux machine or in a Linux virtual machine",
    ),
    "processor": (
        machine(machine="riscv64"),
        "the processor is riscv64; supported are x86_64, aarch64",
        "use a machine with one of those",
    ),
    "memory": (
        machine(memory_mb=1990),
        "the machine has 1990 MB of memory; a cluster of 4 nodes needs 3500 MB",
        "give the machine at least 4 GB",
    ),
    "no Docker, no root": (
        machine(engine=Engine("absent"), root=False),
        "there is no Docker engine and you are not root, so setup cannot install one",
        "run it as root, or install Docker (`sudo apt-get install docker.io`) and join the group `docker`",
    ),
    "no Docker, unsupported distribution": (
        machine(engine=Engine("absent"), debian=False, distribution="Fedora Linux 43"),
        "there is no Docker engine, and setup installs one only on Debian and Ubuntu, not on Fedora Linux 43",
        "install Docker Engine with your package manager, start it, and run this again",
    ),
    "Docker stopped, no root": (
        machine(engine=Engine("stopped"), root=False),
        "the Docker engine is not running and you are not root",
        "run `sudo systemctl start docker`, or run it as root",
    ),
    "Docker denied": (
        machine(engine=Engine("denied"), root=False),
        "you are not allowed to use the Docker engine (permission denied on its socket)",
        'run `sudo usermod -aG docker "$USER"` and log in again, or run it as root',
    ),
    "DOCKER_HOST": (
        machine(engine=Engine("unreachable", "DOCKER_HOST=unix:///run/other.sock does not answer (refused)")),
        "DOCKER_HOST=unix:///run/other.sock does not answer (refused)",
        "start that engine, or `unset DOCKER_HOST` to use this machine's own",
    ),
    "DOCKER_HOST elsewhere": (
        machine(engine=Engine("remote", "DOCKER_HOST=tcp://elsewhere:2375")),
        "the Docker client does not use a unix socket of this machine (DOCKER_HOST=tcp://elsewhere:2375): "
        "nodes of a remote engine cannot be reached from here",
        REMOTE_FIX,
    ),
    "context elsewhere": (
        machine(engine=Engine("remote", "the current Docker context names ssh://me@elsewhere")),
        "the Docker client does not use a unix socket of this machine "
        "(the current Docker context names ssh://me@elsewhere): "
        "nodes of a remote engine cannot be reached from here",
        REMOTE_FIX,
    ),
    "rootless": (
        machine(engine=Engine("running", rootless=True), root=False),
        "the Docker engine is rootless: its containers are unreachable from here and have no cgroups of their own",
        "use the machine's own engine: `unset DOCKER_HOST`, `docker context use default`",
    ),
    "Docker Desktop": (
        machine(engine=Engine("running", desktop=True), root=False),
        "the engine is Docker Desktop, a virtual machine: its containers cannot be reached from here",
        "install Docker Engine as well and run `docker context use default`",
    ),
    "no ensurepip": (
        machine(lacking=frozenset({"ensurepip"}), missing=frozenset({"venv"}), root=False),
        "Python 3.13 lacks ensurepip, so setup cannot create a virtual environment",
        "install it, for example `sudo apt-get install python3.13-venv`",
    ),
    "no Go": (
        machine(lacking=frozenset({"go"}), missing=frozenset({"pulumi"}), reach={"release": False}, debian=False),
        "Pulumi 3.259.0 is not installed; its release cannot be downloaded, so it is built, which needs Go",
        GO_FIX,
    ),
    "no Go, no root": (
        machine(lacking=frozenset({"go"}), missing=frozenset({"pulumi"}), root=False),
        "Pulumi 3.259.0 is not installed; its release cannot be downloaded, so it is built, which needs Go",
        GO_FIX,
    ),
    "old Go on arm64": (
        machine(machine="aarch64", missing=frozenset({"pulumi"}), reach={"release": False}),
        "arm64 needs Go >= 1.25.11 or Pulumi 3.259.0 on PATH: Pulumi's release cannot be downloaded, "
        "and setup has no checksum of Go for arm64",
        GO_FIX,
    ),
    "no Go on arm64, no root": (
        machine(machine="aarch64", missing=frozenset({"pulumi"}), lacking=frozenset({"go"}), root=False),
        "arm64 needs Go >= 1.25.11 or Pulumi 3.259.0 on PATH: Pulumi's release cannot be downloaded, "
        "and setup has no checksum of Go for arm64",
        GO_FIX,
    ),
    "no base image": (
        machine(missing=frozenset({"image"}), reach={"base": False}, root=False),
        f"{pins.OFFICIAL_BASE} cannot be pulled, and the alternative, debootstrap, must be installed and needs root",
        "run it as root, or load the image from a file with `docker load` and tag it muster-base:trixie",
    ),
    "disk": (
        machine(missing=ALL, reach={"release": True}, disks=one_disk(6.24)),
        "the disk of /cache, /repo, /var/lib/docker has 6.2 GB free; setup needs 14 GB there "
        "(venv 1, pulumi 1, image 2, env 9, slurm 1)",
        "free some space, or move MUSTER_CACHE (and Docker's data-root) to a larger disk",
    ),
    "disk of a Pulumi build": (
        machine(missing=frozenset({"pulumi"}), reach={"release": False}, disks=one_disk(3.9)),
        "the disk of /cache has 3.9 GB free; setup needs 4 GB there (pulumi 4)",
        "free some space, or move MUSTER_CACHE (and Docker's data-root) to a larger disk",
    ),
    "apt mirror": (
        machine(reach={"apt": False}),
        "the machine's apt mirror cannot be reached, and setup has to download from it",
        NETWORK_FIX,
    ),
    "package index": (
        machine(reach={"python": False}),
        "the Python package index cannot be reached, and setup has to download from it",
        NETWORK_FIX,
    ),
    "module proxy": (
        machine(reach={"go": False}),
        "the Go module proxy cannot be reached, and setup has to download from it",
        NETWORK_FIX,
    ),
}


@pytest.mark.parametrize("name", TABLE)
def test_each_problem_has_its_message_and_fix(name: str) -> None:
    facts, what, fix = TABLE[name]
    assert [(problem.what, problem.fix) for problem in find_problems(facts)] == [(what, fix)]


@pytest.mark.parametrize(
    "facts",
    [
        machine(),
        machine(root=False),
        machine(debian=False, root=False, distribution="Fedora Linux 43"),
        machine(engine=Engine("stopped")),
        machine(engine=Engine("absent"), root=False, uses_engine=False),
        machine(engine=Engine("absent"), missing=ALL, lacking=frozenset({"docker", "dockerd", "go", "ensurepip"})),
        machine(missing=ALL, disks=one_disk(18.0)),
        machine(missing=ALL, reach={"release": False, "go": True, "base": False}, disks=one_disk(18.0)),
        machine(lacking=frozenset({"go", "ensurepip"}), root=False),
        machine(machine="aarch64"),
        machine(machine="aarch64", missing=frozenset({"pulumi"}), new_go=True),
        machine(machine="aarch64", missing=frozenset({"pulumi"}), reach={"release": True}),
    ],
)
def test_missing_parts_that_setup_can_install_are_not_problems(facts: Facts) -> None:
    assert find_problems(facts) == []


def test_the_documentation_names_the_required_disk_space() -> None:
    needed = sum(size for _, size in DISK_GB.values())
    more = PULUMI_BUILD_GB - DISK_GB["pulumi"][1]
    for page in ("docs/setup.md", "README.md"):
        text = " ".join((REPO / page).read_text().split())
        assert f"{needed} GB of disk" in text
        assert f"{more} GB more" in text


def test_the_documentation_names_the_machines_that_need_go_or_pulumi() -> None:
    """If a new pin changes which machines these are, this fails until both pages say so."""
    pairs = [(processor, root) for processor in MACHINES for root in (False, True)]

    def needy(*, release: bool) -> list[tuple[str, bool]]:
        parts = {"missing": frozenset({"pulumi"}), "lacking": frozenset({"go"}), "reach": {"release": release}}
        return [pair for pair in pairs if find_problems(machine(machine=pair[0], root=pair[1], **parts))]

    assert needy(release=True) == []
    assert needy(release=False) == [pair for pair in pairs if pair != ("x86_64", True)]
    text = (
        f"If Pulumi's release cannot be downloaded, you need Go {pins.GO} or newer, or Pulumi {pins.PULUMI} or newer, "
        "unless you are root on Debian or Ubuntu on x86-64"
    )
    for page in ("README.md", "docs/setup.md"):
        assert text in " ".join((REPO / page).read_text().split())


def test_all_problems_are_reported_together() -> None:
    facts = machine(
        root=False,
        memory_mb=512,
        engine=Engine("absent"),
        missing=ALL,
        lacking=frozenset({"go", "ensurepip"}),
        disks=one_disk(1.0),
        reach={"python": False, "release": False},
    )
    heads = [problem.what.split()[0:3] for problem in find_problems(facts)]
    assert heads == [
        ["the", "machine", "has"],
        ["there", "is", "no"],
        ["Python", "3.13", "lacks"],
        ["Pulumi", "3.259.0", "is"],
        ["the", "disk", "of"],
        ["the", "Python", "package"],
    ]


def test_each_disk_needs_only_the_space_of_its_phases() -> None:
    disks = {**one_disk(2.5), "engine": Disk("/var/lib/docker", 2, 10.5)}
    facts = machine(missing=ALL, reach={"release": True}, disks=disks)
    assert [problem.what for problem in find_problems(facts)] == [
        "the disk of /var/lib/docker has 10.5 GB free; setup needs 12 GB there (image 2, env 9, slurm 1)"
    ]
