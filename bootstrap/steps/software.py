"""software: driver, fabric and NCCL are what the lock table allows; a node that would fall back to TCP fails here."""

from __future__ import annotations

import shlex
from pathlib import Path

from bootstrap.action import Action
from bootstrap.desired import Desired
from bootstrap.errors import BootstrapError
from bootstrap.facts.model import Facts
from bootstrap.steps.step import Step
from cluster.catalog import software
from cluster.catalog.software import Component, Fault, Install, Part
from cluster.inventory import Node

SCRIPT = (Path(__file__).parent.parent / "scripts" / "efa-installer.sh").read_text()
INSTALL_S = 1800.0
READ_S = 10
SHOWN = 3


def actions(facts: Facts, node: Node, desired: Desired) -> list[Action]:
    chosen, texts = wanted(node, desired), _texts(facts, desired)
    if wrong := software.faults(chosen, texts):
        raise BootstrapError(node.name, STEP.name, _said(wrong), fix=_fix(desired))
    return [_install(one.title, one.version, one.install) for one in software.lacking(chosen, texts) if one.install]


def wanted(node: Node, desired: Desired) -> tuple[Component, ...]:
    return software.wanted(_parts(node, desired))


def readings(node: Node, desired: Desired) -> str:
    """Shell text for the facts: what each component says of itself, a line each; silent where it is not there."""
    commands = [
        f"timeout {READ_S} sh -c {shlex.quote(one.reading)} 2>/dev/null </dev/null"
        f' | head -n 20 | sed "s/^/software\\t{one.name}\\t/"'
        for one in wanted(node, desired)
        if one.reading
    ]
    return "".join(f"{command}\n" for command in commands)


def versions(facts: Facts, node: Node, desired: Desired) -> dict[str, dict[str, str]]:
    """What the node has, by component; with the file, where one is all it takes to look again."""
    texts = _texts(facts, desired)
    found = {one: one.found(texts.get(one.name, "")) for one in wanted(node, desired)}
    return {one.name: {"version": version, "file": one.file} for one, version in found.items() if version}


def skip(facts: Facts, node: Node, desired: Desired) -> str:  # noqa: ARG001
    return "" if wanted(node, desired) else "the machine has no GPU, EFA or Lustre"


def _parts(node: Node, desired: Desired) -> set[Part]:
    group = next((one for one in desired.inventory.sets if one.group == node.group), None)
    filesystems = desired.cloud.filesystems if desired.cloud else ()
    has: dict[Part, bool] = {
        "gpu": node.gpus.count > 0 and node.gpus.kind == "real",
        "nvswitch": group is not None and group.nvlinks > 0,
        "efa": node.fabric == "efa",
        "lustre": any(one.kind == "lustre" for one in filesystems),
    }
    return {part for part, there in has.items() if there}


def _texts(facts: Facts, desired: Desired) -> dict[str, str]:
    return {**facts.software, **software.from_lock(desired.lock.decode())}


def _said(wrong: list[Fault]) -> str:
    """A report to the engine has room for a few; the first are what the others follow from."""
    more = [f"and {len(wrong) - SHOWN} more"] if len(wrong) > SHOWN else []
    return "; ".join([*(str(fault) for fault in wrong[:SHOWN]), *more])


def _fix(desired: Desired) -> str:
    image = desired.cloud.image_fix if desired.cloud else "choose a machine image that has them"
    return f"{image}, then `make up`; cluster/catalog/data/software.yaml has what is allowed"


def _install(title: str, version: str, archive: Install) -> Action:
    values = {"ADDRESS": archive.address, "SHA256": archive.sha256}
    head = "".join(f"{name}={shlex.quote(value)}\n" for name, value in values.items())
    fix = "give the node a way out (network.egress), or an image that has it"
    return Action(f"install {title} {version}", head + SCRIPT, timeout=INSTALL_S, fix=fix, slow=True)


STEP = Step("software", "versions of driver, fabric and NCCL", actions, skip=skip)
