"""What an image must bring, by the rules of hosts; with facts of machines that have booted."""

from __future__ import annotations

from dataclasses import replace

import pytest

from infra.targets.hosts.assign import Assignment
from infra.targets.hosts.preflight.facts import MachineFacts
from infra.targets.hosts.preflight.judge import Subject
from infra.targets.rented.machine_check import find_errors
from tests.infra.targets.nebius.specs import make_spec

CONTROLLER = Assignment("controller", "controller", "controller")
GPU = Assignment("gpu-1", "gpu-1", "compute", "gpu")
MACHINE = MachineFacts(os="debian 13", arch="x86_64", init="systemd", python="3.13.5", clock=100.0)
CASES = {
    "Debian with its own Slurm": (MACHINE, CONTROLLER, "24.11", []),
    "packages that are there": (replace(MACHINE, slurm="26.05.5-1"), CONTROLLER, "26.05", []),
    "Ubuntu without Slurm": (replace(MACHINE, os="ubuntu 24.04"), CONTROLLER, "26.05", ["host_slurm_source"]),
    "another release": (replace(MACHINE, slurm="25.05.1-1"), CONTROLLER, "26.05", ["host_slurm_release"]),
    "another system": (replace(MACHINE, os="fedora 42"), CONTROLLER, "24.11", ["host_os"]),
    "GPU node without GPUs and RDMA": (MACHINE, GPU, "24.11", ["host_gpus", "host_rdma"]),
}


@pytest.mark.parametrize(("facts", "assigned", "release", "codes"), CASES.values(), ids=CASES)
def test_what_an_image_lacks(facts: MachineFacts, assigned: Assignment, release: str, codes: list[str]) -> None:
    spec = make_spec(software={"slurm": release})
    assert [problem.code for problem in find_errors(Subject(spec, assigned, facts, 99.0, 101.0))] == codes
