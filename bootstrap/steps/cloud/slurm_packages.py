"""Slurm's packages, if the distribution lacks the release: built once on the controller and fetched by all nodes.

The step `packages` installs them together with those of the distribution.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from bootstrap.action import FETCH_LISTS, MARKERS, Action, digest, write_marker
from bootstrap.bundle import INSTALLED
from bootstrap.desired import Desired
from bootstrap.errors import BootstrapError
from bootstrap.facts.model import Facts
from bootstrap.image_contents import ImageContents
from bootstrap.steps.step import Step
from cluster.inventory import Node, Role

SCRIPT = (Path(__file__).parents[2] / "scripts" / "slurm-packages.sh").read_text()
# Names given by the packaging in Slurm's source, in the order of their dependencies.
NAMES: dict[Role, tuple[str, ...]] = {
    "controller": ("slurm-smd", "slurm-smd-client", "slurm-smd-slurmctld", "slurm-smd-slurmdbd"),
    "login": ("slurm-smd", "slurm-smd-client", "slurm-smd-sackd"),
    "compute": ("slurm-smd", "slurm-smd-client", "slurm-smd-slurmd", "slurm-smd-libpam-slurm-adopt"),
}
# Debian's uid of the user slurm, so that files on a shared disk have the same owner everywhere.
SLURM_UID = 64030
DEBIAN_RELEASE = "24.11"
"""Release of Slurm in Debian 13."""
BUILD_TIMEOUT_S = 3600.0
SHARE_TIMEOUT_S = 300.0
WORK = "/var/cache/muster-slurm"
PACKAGES = f"{WORK}/packages"
"""Folder in which a node has the packages of its role, until they are installed."""
# Part of the name of stored packages. To be increased only if the same source is built into other packages: a
# controller that has Slurm does not build them again, and new nodes would wait for them in vain.
_BUILD = "1"
SUMS = f"{WORK}/published.sha256"
"""File on the controller with the output of sha256sum for the packages that it published last."""
PUBLISHED = ".packages/slurm"
"""Folder on the shared filesystem with a folder of packages per release, for `muster upgrade`."""
ARCHIVE_MARKER = "slurm_archive"
"""Holds the key of the archive that an image has in WORK, until the controller has shared it with the other nodes."""
Mode = Literal["build", "wait", "publish", "bake"]


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


@dataclass(frozen=True)
class PackageBuild:
    """The packages of a release for a distribution, and how nodes share them."""

    release: str
    distribution: str
    store: tuple[str, ...]
    """Command that shares an archive between nodes."""
    shared: str
    """Mount point of the shared filesystem."""

    @property
    def key(self) -> str:
        """Name of the archive: the same for all nodes that can use it."""
        return digest(_BUILD, SOURCES[self.release].sha256, self.distribution)

    def render_script(self, mode: Mode, names: Sequence[str] = ()) -> str:
        """Return the script that builds or fetches the packages; it keeps `names` here, or publishes all of them."""
        source = SOURCES[self.release]
        values = {
            "MODE": mode,
            "KEY": self.key,
            "SOURCES": " ".join(source.addresses),
            "SHA256": source.sha256,
            "WORK": WORK,
            "PACKAGES": PACKAGES,
            "PUBLISHED": f"{self.shared}/{PUBLISHED}/{self.release}",
            "SUMS": SUMS,
            "NAMES": " ".join(names),
            "SLURM_UID": str(SLURM_UID),
            "FETCH_LISTS": FETCH_LISTS,
            "STORE": " ".join([*self.store, self.key]),
        }
        assignments = "".join(f"{name}={shlex.quote(value)}\n" for name, value in values.items())
        return f"cd {INSTALLED}\n{assignments}{SCRIPT}"


def is_built_here(facts: Facts, desired: Desired) -> bool:
    """Return whether Slurm comes from our own build: neither the image nor the distribution has the release."""
    return needs_build(facts, desired.spec.software.slurm)


def needs_build(facts: Facts, release: str) -> bool:
    """Return whether neither the machine nor its distribution has the distribution's packages of a release."""
    offered = not facts.distribution.startswith("ubuntu") and release == DEBIAN_RELEASE
    installed = facts.packages.get("slurm-client", "").startswith(f"{release}.")
    return bool(facts.distribution) and not offered and not installed


def locate_archive(facts: Facts, release: str) -> str:
    """Return the file on the controller with all packages that it built, or would build."""
    return f"{WORK}/{PackageBuild(release, facts.distribution, (), '').key}.tar"


def list_names(roles: Iterable[Role]) -> tuple[str, ...]:
    """Return the packages of several roles, each once."""
    return tuple(dict.fromkeys(name for role in roles for name in NAMES[role]))


def is_installed(facts: Facts, roles: Iterable[Role], release: str) -> bool:
    """Return whether a machine has all packages of these roles, of the pinned version."""
    version = SOURCES[release].version
    return all(facts.packages.get(name, "").startswith(version) for name in list_names(roles))


def check_installed_release(facts: Facts, node: Node, release: str) -> None:
    """Raise BootstrapError if another release of Slurm is installed, which only an upgrade may replace."""
    for name in ("slurm-client", "slurm-smd-client"):
        installed = facts.packages.get(name, "")
        if installed and not installed.startswith(f"{release}."):
            line = f"Slurm {installed} is installed, but software.slurm is {release}"
            fix = f"finish an interrupted upgrade with `muster upgrade`; otherwise use an image with Slurm {release}"
            raise BootstrapError(node.name, "packages", line, fix=fix)


def plan_slurm_packages(facts: Facts, node: Node, desired: Desired) -> list[Action]:
    """Build the packages on the controller, and wait for them on the other nodes.

    A controller whose image has them builds nothing, but shares them with nodes whose image does not.
    """
    release = desired.spec.software.slurm
    check_installed_release(facts, node, release)
    store = desired.cloud.package_store if desired.cloud else ()
    build = PackageBuild(release, facts.distribution, tuple(store), desired.shared)
    builds = node.role == "controller"
    if is_installed(facts, [node.role], release):
        return [_share_archive(build)] if builds and facts.markers.get(ARCHIVE_MARKER) == build.key else []
    if not store:
        line = f"{facts.distribution} has no Slurm {release}, and this cloud cannot store packages"
        raise BootstrapError(node.name, STEP.name, line, fix="use an image that has this release")
    return [_make_packages(build, "build" if builds else "wait", NAMES[node.role])]


def bake_slurm(facts: Facts, contents: ImageContents) -> list[Action]:
    """Fetch or build the packages of all roles, and leave the archive in the image."""
    if not needs_build(facts, contents.slurm) or is_installed(facts, contents.roles, contents.slurm):
        return []
    build = PackageBuild(contents.slurm, facts.distribution, contents.package_store, shared="")
    action = _make_packages(build, "bake", list_names(contents.roles))
    return [replace(action, script=f"{action.script}\n{write_marker(ARCHIVE_MARKER, build.key)}")]


def _make_packages(build: PackageBuild, mode: Mode, names: Sequence[str]) -> Action:
    title = f"{'fetch' if mode == 'wait' else 'build'} Slurm {SOURCES[build.release].version}"
    fix = "see the log for the part that failed; an image that has Slurm needs no build"
    log = "" if mode == "wait" else f"{WORK}/build.log"
    return Action(title, build.render_script(mode, names), timeout=BUILD_TIMEOUT_S, log=log, fix=fix, slow=True)


def _share_archive(build: PackageBuild) -> Action:
    store = " ".join([*build.store, build.key])
    script = f"cd {INSTALLED}\n{store} store {WORK}/{build.key}.tar\nrm {MARKERS}/{ARCHIVE_MARKER}"
    return Action("share the image's packages of Slurm", script, timeout=SHARE_TIMEOUT_S)


def skip(facts: Facts, node: Node, desired: Desired) -> str:
    """Skip distributions that have the release."""
    return "" if is_built_here(facts, desired) else "the distribution has this release"


def _list_packages(node: Node) -> tuple[str, ...]:
    return NAMES[node.role]


STEP = Step(
    "slurm",
    "Slurm's packages, built once",
    plan_slurm_packages,
    skip=skip,
    packages=_list_packages,
    bake=bake_slurm,
)
