"""Which nodes are asked for their jobs after a start of slurmctld; tests/e2e/test_restored_jobs.py has a real Slurm."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.harness import REPO

PROGRAM = REPO / "slurm/control/check_restored_jobs.sh"
CONFIG = "BOOT_TIME               = 2026-11-17T10:00:00\nBatchStartTimeout       = 60 sec\n"


class StubbedSlurm:
    """Commands of Slurm that read the state of each node from a file and record updates."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "config").write_text(CONFIG)
        self._write("sleep", ":")
        self._write("squeue", f"ls {folder}/states")
        self._write(
            "sinfo", f'for option; do case $option in --nodes=*) cat {folder}/states/"${{option#*=}}";; esac; done'
        )
        self.set_states()

    def set_states(self, after_update: str = ":", **states: str) -> None:
        """Give nodes these states; `after_update` is what a person does after the first update."""
        (self.folder / "states").mkdir(exist_ok=True)
        for name, state in states.items():
            (self.folder / "states" / name).write_text(f"{state}\n")
        update = f'echo "$2" >>{self.folder}/updated; {after_update}'
        self._write("scontrol", f"case $1 in show) cat {self.folder}/config;; update) {update};; esac")

    def ask(self) -> list[str]:
        """Run the program and return the nodes that it asked."""
        environment = {"PATH": f"{self.folder / 'bin'}:/usr/bin:/bin"}
        subprocess.run(["bash", str(PROGRAM)], env=environment, check=True, capture_output=True, timeout=240)
        updated = self.folder / "updated"
        return [line.removeprefix("NodeName=") for line in updated.read_text().split()] if updated.exists() else []

    def _write(self, name: str, script: str) -> None:
        tool = self.folder / "bin" / name
        tool.parent.mkdir(exist_ok=True)
        tool.write_text(f"#!/bin/bash\n{script}\n")
        tool.chmod(0o755)


@pytest.fixture
def slurm(tmp_path: Path) -> StubbedSlurm:
    return StubbedSlurm(tmp_path)


def test_only_nodes_in_service_are_asked(slurm: StubbedSlurm) -> None:
    slurm.set_states(a="mixed", b="draining", c="allocated*", d="down", e="allocated", f="powering_up", g="mixed@")
    assert slurm.ask() == ["a", "e"]


def test_a_node_that_is_drained_while_others_are_asked_stays_drained(slurm: StubbedSlurm) -> None:
    slurm.set_states(f"echo draining >{slurm.folder}/states/b", a="mixed", b="mixed", c="mixed")
    assert slurm.ask() == ["a", "c"]
