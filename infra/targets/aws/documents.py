"""What the AWS target generates for the documentation: blocks of its page, and interface layouts per type."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict

from cluster.catalog.instances import InstanceType, all_types
from infra.targets.aws import page
from infra.targets.aws.launcher.fleet import Interface
from infra.targets.aws.plan.interfaces import interfaces

PAGE = "docs/aws.md"
LAYOUTS = "interfaces"


def document_blocks() -> Mapping[str, Mapping[str, str]]:
    """Return the generated blocks of the target's page."""
    return {PAGE: page.blocks()}


def golden_files() -> Mapping[str, str]:
    """Return the interface layouts of every instance type that can be a compute node."""
    every = all_types().items()
    return {f"{LAYOUTS}/{name}.json": _layouts(kind) for name, kind in every if _for_compute(kind)}


def _for_compute(kind: InstanceType) -> bool:
    return bool(kind.gpus.count or kind.neuron or kind.efa_interfaces)


def _layouts(kind: InstanceType) -> str:
    """Return every way to lay out the interfaces of a type, one line per interface."""
    ways = {"tcp": interfaces(kind, "tcp")}
    if kind.efa_interfaces:
        ways["efa"] = interfaces(kind, "efa")
        ways["efa, ip_bandwidth"] = interfaces(kind, "efa", ip_bandwidth=True)
    blocks = ",\n".join(f"  {json.dumps(way)}: [\n{_lines(planned)}\n  ]" for way, planned in ways.items())
    return f"{{\n{blocks}\n}}\n"


def _lines(planned: tuple[Interface, ...]) -> str:
    return ",\n".join(f"    {json.dumps(asdict(interface))}" for interface in planned)
