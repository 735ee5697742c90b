"""The health step: one program for the node's own Python, and the hardware that it expects."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from bootstrap.facts.model import Facts
from bootstrap.program import pack_program
from bootstrap.steps import health
from bootstrap.steps.cloud import imex
from cluster.inventory import Adopted, Node, NodeGpus, NodeSet
from tests.bootstrap.clusters import desired

ROOT = Path(__file__).parents[2]


def test_the_program_is_one_runnable_file_and_its_build_is_reproducible(tmp_path: Path) -> None:
    program = tmp_path / "health.pyz"
    program.write_bytes(pack_program(ROOT, health.SOURCES, health.START))
    pack_program.cache_clear()
    assert pack_program(ROOT, health.SOURCES, health.START) == program.read_bytes()
    # On a node, none of muster's packages are installed.
    done = subprocess.run([sys.executable, "-I", "-S", str(program)], capture_output=True, text=True, cwd=tmp_path)
    usage = (
        "usage: python3 -m slurm.health "
        "prolog|interval|epilog|maintenance|unkillable|fence|recheck CHECK...|clock ADDRESS\n"
    )
    assert (done.returncode, done.stderr) == (2, usage)


def test_a_look_at_the_controllers_clock_imports_no_checks(tmp_path: Path) -> None:
    program = tmp_path / "health.pyz"
    program.write_bytes(pack_program(ROOT, health.SOURCES, health.START))
    code = f"""
import runpy, sys, types
clock = sys.modules["slurm.health.other_clock"] = types.ModuleType("clock")
clock.print_offset = lambda address: print(address, [name for name in sys.modules if name == "slurm.health.check"])
sys.argv = ["health.pyz", "clock", "10.0.0.1"]
runpy.run_path({str(program)!r}, run_name="__main__")
"""
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "10.0.0.1 []\n"), done.stderr


def test_simulated_gpus_are_not_expected_by_health_checks() -> None:
    target = desired()
    expected = json.loads(health.describe_expected(Facts(), target.inventory.compute[0], target))
    assert (expected["gpus"], expected["efa"], expected["mounts"]) == (0, 0, list(target.inventory.mounts))


def test_a_launched_node_is_expected_to_have_the_hardware_of_its_type() -> None:
    gpus = NodeGpus(count=8, kind="real", type="h200")
    h200 = NodeSet(group="h200", count=4, static=4, cpus=192, memory_mb=2_000_000, gpus=gpus, fabric="efa",
                   nvlinks=18, efa_devices=16, busbw={2**30: 437.0})  # fmt: skip
    target = desired()
    target = replace(target, inventory=target.inventory.model_copy(update={"sets": (h200,)}))
    machine = Node(name="h200-3", role="compute", group="h200", address="10.0.0.9", host_key="", machine_id="i-1",
                   cpus=192, memory_mb=2_000_000, gpus=gpus, fabric="efa")  # fmt: skip
    assert json.loads(health.describe_expected(Facts(), machine, target)) == {
        "fabric": "efa",
        "group": "h200",
        "max_drained_percent": 20,
        "gpus": 8,
        "nvlinks": 18,
        "efa": 16,
        "rdma": {},
        "ultraserver": [],
        "busbw": {"1073741824": 437.0},
        "mounts": list(target.inventory.mounts),
        "controller": target.inventory.controller.address,
        "software": {},
    }


def test_a_node_of_an_ultraserver_knows_the_others() -> None:
    gb = NodeSet(group="gb", count=3, static=3, cpus=144, memory_mb=900_000, ultraserver=True)
    target = desired()
    target = replace(target, inventory=target.inventory.model_copy(update={"sets": (gb,)}))
    machine = Node(name="gb-2", role="compute", group="gb", address="10.0.0.9", host_key="", machine_id="i-1",
                   cpus=144, memory_mb=900_000)  # fmt: skip
    expected = json.loads(health.describe_expected(Facts(), machine, target))
    assert expected["ultraserver"] == ["gb-1", "gb-2", "gb-3"]
    assert imex.skip(Facts(), machine, target) == ""
    assert imex.skip(Facts(), target.inventory.compute[0], target) == "the node is not in an UltraServer"
    titles = [action.title for action in imex.plan_imex(Facts(), machine, target)]
    # The next run repeats what comes before the file if it fails.
    assert titles == [
        "stop nvidia-imex between jobs",
        f"write {imex.DROP_IN}",
        "reload the unit of nvidia-imex",
    ]


@pytest.mark.parametrize("when", ["interval", "prolog", "unkillable"])
def test_programs_know_the_node_also_if_slurm_does_not_name_it(tmp_path: Path, when: str) -> None:
    """slurmstepd and systemd set no SLURMD_NODENAME, and machines of an owner keep their host names."""
    target = desired()
    own = target.inventory.compute[0]
    adopted = own.model_copy(update={"adopted": Adopted(hostname="rack1-1", user="ops")})
    (tmp_path / "python3").write_text('#!/bin/sh\necho "${SLURMD_NODENAME-unset} $*"\n')
    (tmp_path / "python3").chmod(0o755)

    def run_program(node: Node, **variables: str) -> str:
        program = tmp_path / "program"
        program.write_text(health.render_program(node, target, when))
        environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", **variables}
        return subprocess.run(["sh", program], env=environment, capture_output=True, text=True, check=True).stdout

    line = f"/etc/muster/health.pyz {when}\n"
    assert run_program(adopted) == f"gpu-1 {line}"
    assert run_program(adopted, SLURMD_NODENAME="gpu-7") == f"gpu-7 {line}"
    assert run_program(own) == f"unset {line}"
