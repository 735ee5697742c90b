"""Software: driver, fabric and NCCL must have the versions in the software table, or a job would silently use TCP."""

from __future__ import annotations

import shlex
from pathlib import Path

from bootstrap.action import FETCH_LISTS, Action
from bootstrap.desired import Desired
from bootstrap.errors import BootstrapError
from bootstrap.facts.model import Facts
from bootstrap.steps.step import Step
from cluster.catalog import software
from cluster.catalog.software import Component, Hardware, Installer, VersionFault
from cluster.inventory import Node

SCRIPT = (Path(__file__).parents[2] / "scripts" / "efa-installer.sh").read_text()
INSTALL_TIMEOUT_S = 1800.0
READ_TIMEOUT_S = 10
MAX_FAULTS_SHOWN = 3


def plan_software(facts: Facts, node: Node, desired: Desired) -> list[Action]:
    """Install missing components; raise BootstrapError for versions that are not allowed."""
    components, texts = list_required(node, desired), _texts(facts, desired)
    if faults := software.find_faults(components, texts):
        raise BootstrapError(node.name, STEP.name, _describe_faults(faults), fix=_describe_fix(desired))
    return list_installers(facts, node, desired)


def list_installers(facts: Facts, node: Node, desired: Desired) -> list[Action]:
    """Return the actions that install missing components which have an installer."""
    missing = software.list_missing(list_required(node, desired), _texts(facts, desired))
    return [_install(component, component.install) for component in missing if component.install]


def list_required(node: Node, desired: Desired) -> tuple[Component, ...]:
    """Return the components that a node with this hardware must have."""
    return software.list_required(_list_hardware(node, desired))


def print_readings(node: Node, desired: Desired) -> str:
    """Return shell text that prints each component's version output; nothing for components that are missing."""
    commands = [
        f"timeout {READ_TIMEOUT_S} sh -c {shlex.quote(component.reading)} 2>/dev/null </dev/null"
        f' | head -n 20 | sed "s/^/software\\t{component.name}\\t/"'
        for component in list_required(node, desired)
        if component.reading
    ]
    return "".join(f"{command}\n" for command in commands)


def read_versions(facts: Facts, node: Node, desired: Desired) -> dict[str, dict[str, str]]:
    """Return the version of each component on the node, and the file that shows it (empty if a command does)."""
    texts = _texts(facts, desired)
    versions = {
        component: component.parse_version(texts.get(component.name, "")) for component in list_required(node, desired)
    }
    return {c.name: {"version": version, "file": c.file} for c, version in versions.items() if version}


def skip(facts: Facts, node: Node, desired: Desired) -> str:
    """Skip machines without special hardware."""
    return "" if list_required(node, desired) else "the machine has no GPU, EFA or Lustre"


def _list_hardware(node: Node, desired: Desired) -> set[Hardware]:
    node_set = next((nodes for nodes in desired.inventory.sets if nodes.group == node.group), None)
    filesystems = desired.cloud.filesystems if desired.cloud else ()
    present: dict[Hardware, bool] = {
        "gpu": node.gpus.count > 0 and node.gpus.kind == "real",
        "nvswitch": node_set is not None and node_set.nvlinks > 0,
        "efa": node.fabric == "efa",
        "lustre": any(filesystem.kind == "lustre" for filesystem in filesystems),
    }
    return {part for part in present if present[part]}


def _texts(facts: Facts, desired: Desired) -> dict[str, str]:
    return {**facts.software, **software.read_lock(desired.lock.decode())}


def _describe_faults(faults: list[VersionFault]) -> str:
    """Describe the first faults, which usually cause the others, because a report has room for only a few."""
    hidden = len(faults) - MAX_FAULTS_SHOWN
    more = [f"and {hidden} more"] if hidden > 0 else []
    return "; ".join([*(str(fault) for fault in faults[:MAX_FAULTS_SHOWN]), *more])


def _describe_fix(desired: Desired) -> str:
    image = (desired.cloud and desired.cloud.image_fix) or "use an image that has the required versions"
    return f"{image}, then `make up`; the allowed versions are in cluster/catalog/data/software.yaml"


def _install(component: Component, installer: Installer) -> Action:
    values = {"ADDRESS": installer.address, "SHA256": installer.sha256, "FETCH_LISTS": FETCH_LISTS}
    assignments = "".join(f"{name}={shlex.quote(value)}\n" for name, value in values.items())
    title = f"install {component.title} {component.version}"
    fix = "give the node access to the internet (network.egress), or use an image that has it"
    return Action(title, assignments + SCRIPT, timeout=INSTALL_TIMEOUT_S, fix=fix, slow=True)


STEP = Step("software", "versions of driver, fabric and NCCL", plan_software, skip=skip, readings=print_readings)
