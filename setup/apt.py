"""Install the Debian packages that setup needs and this machine lacks, if it has apt."""

import importlib.util
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from setup import pulumi_go
from setup.facts import Facts
from setup.paths import Paths
from setup.run import SetupError, ask, run

# Each command that setup looks for, and the package that provides it.
PROVIDERS = {
    "shellcheck": "shellcheck",
    "ssh": "openssh-client",
    "docker": "docker.io",
    "dockerd": "docker.io",
    "debootstrap": "debootstrap",
    "go": "golang-go",
}
BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
# A file server that tests can stop, and a compiler for the library that shows programs another time.
FAULT_TOOLS = ("bindfs", "cc")
FAULT_TOOL_PACKAGES = ("bindfs", "gcc", "libc6-dev")
BROWSER_PACKAGES = ("chromium-headless-shell", "fonts-dejavu-core")


def find_lacking() -> frozenset[str]:
    """Return which commands of PROVIDERS, and `ensurepip`, are not installed."""
    lacking = {command for command in PROVIDERS if command != "go" and shutil.which(command) is None}
    if pulumi_go.find_go() is None:
        lacking.add("go")
    if importlib.util.find_spec("ensurepip") is None:
        lacking.add("ensurepip")
    return frozenset(lacking)


def packages(facts: Facts) -> tuple[str, ...]:
    """Return the packages to install: only missing tools, and only those that a phase is going to use."""
    if not facts.can_install:
        return ()
    commands = facts.lacking & {"shellcheck", "ssh"}
    if facts.uses_engine:
        commands |= facts.lacking & {"docker"}
    if facts.uses_engine and facts.engine.state == "absent":
        commands |= facts.lacking & {"dockerd"}
    if "image" in facts.missing | facts.unknown:
        commands |= facts.lacking & {"debootstrap"}
    if facts.builds_pulumi:
        commands |= facts.lacking & {"go"}
    names = {PROVIDERS[command] for command in commands}
    if "ensurepip" in facts.lacking and "venv" in facts.missing:
        names.add(f"python{facts.python}-venv")
    if "debootstrap" in commands:
        names.add("debian-archive-keyring")
    return tuple(sorted(names))


def install(_: Paths, facts: Facts, log: Path) -> None:
    """Install the missing packages."""
    names = list(packages(facts))
    _apt_get(["update"], log)
    # Since Debian 13 the engine's package no longer contains the client.
    if facts.uses_engine and "docker" in facts.lacking and ask(["apt-cache", "show", "docker-cli"]).code == 0:
        names.append("docker-cli")
    _apt_get(["install", *names], log)
    importlib.invalidate_caches()


def find_browser() -> str | None:
    """Return the path of a browser for the tests that look at HTML pages, or None."""
    return next((path for name in BROWSERS if (path := shutil.which(name))), None)


def install_browser(_: Paths, log: Path) -> None:
    """Install a browser for the tests that look at HTML pages, unless there is one."""
    if find_browser():
        return
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise SetupError(f"no browser is installed and setup cannot install one: install one of {', '.join(BROWSERS)}")
    install_packages(BROWSER_PACKAGES, log)


def install_fault_tools(_: Paths, log: Path) -> None:
    """Install what nightly tests cause faults with, unless it is there."""
    lacking = [name for name in FAULT_TOOLS if shutil.which(name) is None]
    if not lacking:
        return
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise SetupError(f"setup cannot install the programs that cause faults in tests: install {', '.join(lacking)}")
    install_packages(FAULT_TOOL_PACKAGES, log)


def install_packages(names: Sequence[str], log: Path) -> None:
    """Install packages, as root."""
    _apt_get(["update"], log)
    _apt_get(["install", *names], log)


def _apt_get(arguments: list[str], log: Path) -> None:
    options = ["-y", "--no-install-recommends", "-o", "Dpkg::Use-Pty=0", "-o", "DPkg::Lock::Timeout=300"]
    run(["apt-get", *options, *arguments], log, env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"})
