"""Containers: the program that starts `srun --container` tasks, which runs crun as the job's user."""

from __future__ import annotations

import json

from bootstrap.action import Action, write_file
from bootstrap.desired import Desired
from bootstrap.facts.model import Facts
from bootstrap.program import pack_program
from bootstrap.steps.cloud import disks
from bootstrap.steps.step import Step
from cluster.inventory import Node
from slurm.containers.installed import PROGRAM, SETTINGS

SOURCES = ("containers",)
START = "import sys; from slurm.containers.__main__ import main; sys.exit(main(sys.argv[1:]))\n"


def plan_containers(facts: Facts, node: Node, desired: Desired) -> list[Action]:
    """Write the program, and the folders of the node that every container has."""
    settings = {"mounts": list_mounts(desired)}
    return [
        *write_file(facts, PROGRAM, pack_program(desired.root, SOURCES, START)),
        *write_file(facts, SETTINGS, json.dumps(settings, sort_keys=True) + "\n"),
    ]


def list_mounts(desired: Desired) -> list[str]:
    """Return shared filesystems, homes and scratch disk; the program leaves out what a node does not have."""
    return list(dict.fromkeys([*desired.inventory.mounts, desired.homes, disks.SCRATCH_MOUNT]))


STEP = Step("containers", "OCI containers of jobs", plan_containers, roles=("compute",))
