"""Lustre client: kernel modules for the running kernel, or another kernel for which there are some, and a restart."""

from __future__ import annotations

import shlex
from pathlib import Path

from bootstrap.action import FETCH_LISTS, Action, write_file
from bootstrap.bundle import INSTALLED, INSTALLED_PYTHON
from bootstrap.desired import Desired
from bootstrap.errors import BootstrapError
from bootstrap.facts.model import Facts
from bootstrap.image_contents import ImageContents
from bootstrap.lustre_kernels import CLIENT
from bootstrap.restart import REQUEST
from bootstrap.steps.cloud import software
from bootstrap.steps.step import Step
from cluster.inventory import Node, PackageRepository

_SCRIPTS = Path(__file__).parents[2] / "scripts"
SCRIPT = (_SCRIPTS / "lustre-client.sh").read_text()
SWITCH_SCRIPT = (_SCRIPTS / "lustre-kernel.sh").read_text()
CHOSEN = "/run/muster/lustre-kernel"
"""File with the kernel that the step `packages` installs with everything else; a restart removes it."""
# Installing a kernel includes building the modules of driver and fabric for it.
INSTALL_TIMEOUT_S = 1800.0
# More requests in flight: with the defaults, a node gets only a fraction of the servers' bandwidth.
_CHOICE = "lustre_kernel"
MODPROBE = "options ptlrpc ptlrpcd_per_cpt_max=32\noptions ksocklnd credits=2560\n"


def plan_client(facts: Facts, node: Node, desired: Desired) -> list[Action]:
    """Let the step `packages` install the client; install another kernel with its client if this one has none.

    Compute nodes, for which jobs may wait, also leave the kernel to `packages`, because each transaction takes time.
    Other machines do not: daemons, such as MariaDB, would run with their defaults after the restart. Nor do nodes that
    lack the software of their fabric, whose installer comes before the packages.
    """
    repository = desired.cloud.lustre_client if desired.cloud else None
    postponed = node.role == "compute" and not software.list_installers(facts, node, desired)
    return _prepare(facts, repository, node.name, postponed=postponed)


def read_choice(facts: Facts) -> str:
    """Return the kernel that `packages` has to install before a restart; empty if the running one has a client."""
    return "" if name_client(facts) in facts.packages else facts.software.get(_CHOICE, "")


def list_kernel_packages(kernel: str) -> tuple[str, ...]:
    """Return the packages of a kernel with its client. With the headers, DKMS builds driver and fabric for it."""
    return (f"linux-image-{kernel}", f"linux-headers-{kernel}", f"{CLIENT}{kernel}")


def render_switch(facts: Facts, kernel: str) -> str:
    """Return shell text that requests a restart with a kernel that was installed."""
    return f"KERNEL={kernel}\nRUNNING={facts.kernel}\nRESTART={REQUEST}\n{SWITCH_SCRIPT}"


def bake_client(facts: Facts, contents: ImageContents) -> list[Action]:
    """Do the same in images of clusters with Lustre; the kernel that has a client becomes that of the image."""
    return _prepare(facts, contents.lustre_client, "the image") if "lustre" in contents.filesystems else []


def name_client(facts: Facts) -> str:
    """Return the package with the client for the running kernel."""
    return f"{CLIENT}{facts.kernel}"


def finish_client(facts: Facts) -> str:
    """Return shell text that loads the client after its installation, and keeps its version that of the kernel."""
    return f"apt-mark hold {name_client(facts)}\nmodprobe lustre"


def _prepare(
    facts: Facts, repository: PackageRepository | None, machine: str, *, postponed: bool = False
) -> list[Action]:
    todo = write_file(facts, "/etc/modprobe.d/muster.conf", MODPROBE)
    package = name_client(facts)
    if package in facts.packages:
        return todo
    if repository is None:
        line = f"{package} is not installed, and this cloud has no package repository with Lustre clients"
        raise BootstrapError(machine, STEP.name, line, fix="use an image that has the package")
    values = {
        "RUNNING": facts.kernel,
        "URL": repository.url,
        "KEY_URL": repository.key_url,
        "FINGERPRINT": repository.fingerprint,
        "PYTHON": INSTALLED_PYTHON,
        "FETCH_LISTS": FETCH_LISTS,
        "SWITCH": f"RESTART={REQUEST}\n{SWITCH_SCRIPT}",
        "CHOSEN": CHOSEN if postponed else "",
    }
    assignments = "".join(f"{name}={shlex.quote(value)}\n" for name, value in values.items())
    script = f"cd {INSTALLED}\n{assignments}{SCRIPT}"
    fix = f"use an image whose kernel has a Lustre client in {repository.url}; {machine} runs {facts.kernel}"
    log = "/var/log/apt/term.log"
    return [*todo, Action(f"find {package}", script, timeout=INSTALL_TIMEOUT_S, log=log, fix=fix, slow=True)]


def skip(facts: Facts, node: Node, desired: Desired) -> str:
    """Skip clusters without Lustre; raise BootstrapError if there is no client for the distribution."""
    filesystems = desired.cloud.filesystems if desired.cloud else ()
    if not any(filesystem.kind == "lustre" for filesystem in filesystems):
        return "the cluster has no Lustre filesystem"
    if not facts.distribution.startswith("ubuntu"):
        line = f"there is no Lustre client for {facts.distribution or 'this distribution'}"
        raise BootstrapError(node.name, STEP.name, line, fix="use the default image (Ubuntu 22.04) or other storage")
    return ""


def _print_choice(node: Node, desired: Desired) -> str:
    return f"sed 's/^/software\\t{_CHOICE}\\t/' {CHOSEN} 2>/dev/null\n" if node.role == "compute" else ""


def _list_packages(node: Node) -> tuple[str, ...]:
    return (f"{CLIENT}*",)


STEP = Step(
    "lustre",
    "Lustre client and a kernel that has one",
    plan_client,
    skip=skip,
    packages=_list_packages,
    readings=_print_choice,
    bake=bake_client,
)
