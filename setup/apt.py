"""Packages of the machine itself: only what is missing, only where apt can be used."""

import importlib.util
import os
import shutil
from pathlib import Path

from setup import pulumi_go
from setup.facts import Facts
from setup.paths import Paths
from setup.run import ask, run

# What is looked for, and the package that brings it.
PROVIDERS = {
    "shellcheck": "shellcheck",
    "ssh": "openssh-client",
    "docker": "docker.io",
    "dockerd": "docker.io",
    "debootstrap": "debootstrap",
    "go": "golang-go",
}


def lacking() -> frozenset[str]:
    found = {command for command in PROVIDERS if command != "go" and shutil.which(command) is None}
    if pulumi_go.find() is None:
        found.add("go")
    if importlib.util.find_spec("ensurepip") is None:
        found.add("ensurepip")
    return frozenset(found)


def packages(facts: Facts) -> tuple[str, ...]:
    """What to install: tools only when there is work for them."""
    if not facts.can_install:
        return ()
    wanted = facts.lacking & {"shellcheck", "ssh"}
    if facts.uses_engine:
        wanted |= facts.lacking & {"docker"}
    if facts.uses_engine and facts.engine.state == "absent":
        wanted |= facts.lacking & {"dockerd"}
    if "image" in facts.missing | facts.unknown:
        wanted |= facts.lacking & {"debootstrap"}
    if facts.builds_pulumi:
        wanted |= facts.lacking & {"go"}
    names = {PROVIDERS[command] for command in wanted}
    if "ensurepip" in facts.lacking and "venv" in facts.missing:
        names.add(f"python{facts.python}-venv")
    if "debootstrap" in wanted:
        names.add("debian-archive-keyring")
    return tuple(sorted(names))


def act(_: Paths, facts: Facts, log: Path) -> None:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    run(["apt-get", "update"], log, env=environment)
    names = list(packages(facts))
    # From Debian 13 on the engine's package leaves its client out.
    if facts.uses_engine and "docker" in facts.lacking and ask(["apt-cache", "show", "docker-cli"]).code == 0:
        names.append("docker-cli")
    options = ["-y", "--no-install-recommends", "-o", "Dpkg::Use-Pty=0", "-o", "DPkg::Lock::Timeout=300"]
    run(["apt-get", "install", *options, *names], log, env=environment)
    importlib.invalidate_caches()
