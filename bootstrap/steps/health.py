"""health: the checks that take a broken node away, and what this node should have."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path

from bootstrap.action import Action, write
from bootstrap.desired import Desired
from bootstrap.facts.model import Facts
from bootstrap.steps.software import versions
from bootstrap.steps.step import Step
from cluster.inventory import Node

ETC = "/etc/muster"
START = "import sys; from slurm.health.__main__ import main; sys.exit(main(sys.argv[1:]))\n"
PROGRAM = '#!/bin/sh\nexec python3 {etc}/health.pyz {when} "$@"\n'


def actions(facts: Facts, node: Node, desired: Desired) -> list[Action]:
    return [
        *write(facts, f"{ETC}/expected.json", expected(facts, node, desired)),
        *write(facts, f"{ETC}/health.pyz", program(desired.root)),
        *write(facts, f"{ETC}/health", PROGRAM.format(etc=ETC, when="interval"), 0o755),
        *write(facts, f"{ETC}/prolog", PROGRAM.format(etc=ETC, when="prolog"), 0o755),
    ]


def expected(facts: Facts, node: Node, desired: Desired) -> str:
    """For the health checks and the fabric job. Simulated GPUs have no driver to ask."""
    known = next((nodes for nodes in desired.inventory.sets if nodes.group == node.group), None)
    return json.dumps(
        {
            "fabric": node.fabric,
            "gpus": node.gpus.count if node.gpus.kind == "real" else 0,
            "nvlinks": known.nvlinks if known else 0,
            "efa": known.efa_devices if known else 0,
            "busbw": known.busbw if known else {},
            "mounts": list(desired.inventory.mounts),
            "software": {} if desired.cloud is None else versions(facts, node, desired),
        },
        sort_keys=True,
    )


def program(root: Path) -> bytes:
    """One file that the node's own Python runs; the same sources give the same bytes."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for path in (root / "slurm" / "__init__.py", *_sources(root, "control"), *_sources(root, "health")):
            archive.writestr(_entry(str(path.relative_to(root))), path.read_bytes())
        archive.writestr(_entry("__main__.py"), START)
    return buffer.getvalue()


def _sources(root: Path, package: str) -> list[Path]:
    return sorted((root / "slurm" / package).glob("*.py"))


def _entry(name: str) -> zipfile.ZipInfo:
    return zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))


STEP = Step("health", "checks before jobs and in between", actions, roles=("compute",))
