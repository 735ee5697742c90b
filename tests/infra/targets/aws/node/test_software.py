"""The software step: with given installed versions, setup continues, installs or fails, with exact messages."""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest

from bootstrap.desired import Desired
from bootstrap.errors import BootstrapError
from bootstrap.facts.parse import parse_facts
from bootstrap.plan import plan_steps
from bootstrap.steps import health
from bootstrap.steps.cloud import software
from cluster.inventory import Filesystem, Node, NodeGpus, NodeSet
from infra.targets.aws.node.early import MAX_LINE
from infra.targets.aws.node.identity import add_node, find_node
from infra.targets.aws.plan.images import image_fix
from infra.targets.aws.spec import Aws
from tests.bootstrap.clusters import desired as local
from tests.cluster.catalog.software_output import CLOSED_DRIVER, GOOD, OPEN_DRIVER
from tests.infra.targets.aws.node.clusters import LUSTRE, desired, fixed, inventory, ubuntu

H100 = NodeSet(
    group="gpu", count=4, static=2, cpus=8, memory_mb=65536, fabric="efa", instance_type="p5.48xlarge", nvlinks=18,
    gpus=NodeGpus(count=8, kind="real"), host_key="ssh-ed25519 AAAAgpu", efa_devices=32,
)  # fmt: skip
KNOWN = inventory().model_copy(update={"sets": (H100,)})
GPU = find_node(KNOWN, "gpu-3", "i-3", "10.0.1.3")
CONTROLLER = fixed("controller", "controller", 10)
FACTS = ubuntu(software=GOOD)


def target(*filesystems: Filesystem, ami: str | None = None) -> Desired:
    fix = image_fix(Aws(region="us-east-1", ami=ami))
    return replace(desired(*filesystems, image_fix=fix), inventory=add_node(KNOWN, GPU))


def test_nothing_is_done_on_a_machine_with_all_versions() -> None:
    assert software.STEP.actions(FACTS, GPU, target()) == []


def test_an_old_driver_fails_set_up_before_anything_is_changed() -> None:
    old = replace(FACTS, software=GOOD | {"driver": CLOSED_DRIVER})
    with pytest.raises(BootstrapError) as raised:
        plan_steps({GPU.name: old}, target())
    assert str(raised.value) == (
        "node gpu-3, step software: NVIDIA driver 550.135; allowed: 580 or newer (the training environment has CUDA "
        "13, which older branches cannot run); NVIDIA fabric manager 580.126.09; allowed: 550.135, the version of "
        "NVIDIA driver (it does not start with a driver of another version, and no GPU works without it). Fix: set "
        "`aws.ami` to an image that has the required versions, then `make up`; the allowed versions are in "
        "cluster/catalog/data/software.yaml."
    )


def test_many_problems_fit_into_a_report() -> None:
    bare = replace(FACTS, software={"efa_installer": "# EFA installer version: 1.22.0"})
    with pytest.raises(
        BootstrapError, match=r"NVIDIA driver is missing.*EFA installer 1\.22\.0.*; and 3 more"
    ) as raised:
        software.STEP.actions(bare, GPU, target())
    assert len(str(raised.value)) < MAX_LINE


def test_the_fix_names_a_custom_image() -> None:
    with pytest.raises(
        BootstrapError, match=r"EFA kernel module is missing.*remove `aws.ami: ami-0a` to use the AWS image"
    ):
        software.STEP.actions(replace(FACTS, software=GOOD | {"efa": ""}), GPU, target(ami="ami-0a"))


def test_efa_is_installed_if_the_image_does_not_have_it() -> None:
    bare = replace(FACTS, software={"driver": OPEN_DRIVER, "fabric_manager": GOOD["fabric_manager"]})
    (action,) = software.STEP.actions(bare, GPU, target())
    assert action.title == "install EFA installer 1.50.0"
    assert "ADDRESS=https://efa-installer.amazonaws.com/aws-efa-installer-1.50.0.tar.gz\n" in action.script


@pytest.mark.parametrize(
    ("node", "filesystems", "reason"),
    [
        (GPU, (), ""),
        (CONTROLLER, (), "the machine has no GPU, EFA or Lustre"),
        (CONTROLLER, (LUSTRE,), ""),
    ],
)
def test_machines_without_special_hardware_are_skipped(
    node: Node, filesystems: tuple[Filesystem, ...], reason: str
) -> None:
    assert software.STEP.skip(FACTS, node, target(*filesystems)) == reason


def test_simulated_gpus_require_no_software() -> None:
    state = local()
    assert software.list_required(state.inventory.compute[0], state) == ()


def test_facts_contain_the_output_of_each_component() -> None:
    done = subprocess.run(
        ["sh", "-c", software.print_readings(GPU, target(LUSTRE))], capture_output=True, text=True, check=True
    )
    assert parse_facts(done.stdout).software["kernel"] == os.uname().release
    assert parse_facts("software\tefa_installer\t# a\tb\nsoftware\tefa_installer\t# c\n").software == {
        "efa_installer": "# a\tb\n# c"
    }


def test_health_checks_know_the_installed_versions() -> None:
    versions = software.read_versions(FACTS, GPU, target())
    assert versions["driver"] == {"version": "580.126.09", "file": "/proc/driver/nvidia/version"}
    assert versions["libfabric"] == {"version": "2.6.0", "file": ""}
    assert '"gdrcopy": {"file": "/sys/module/gdrdrv/version", "version": "2.5.2"}' in health.describe_expected(
        FACTS, GPU, target()
    )


@pytest.fixture
def tools(tmp_path: Path) -> dict[str, str]:
    """Return an environment with fake versions of the tools that would change this machine."""
    for name in ("modprobe", "ldconfig"):
        tool = tmp_path / "bin" / name
        tool.parent.mkdir(exist_ok=True)
        tool.write_text(f'#!/bin/sh\necho {name} "$@"\n')
        tool.chmod(0o755)
    return {**os.environ, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"}


def test_the_installer_runs_only_if_the_archive_has_the_right_hash(tmp_path: Path, tools: dict[str, str]) -> None:
    archive = tmp_path / "efa.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        entry, script = tarfile.TarInfo("aws-efa-installer/efa_installer.sh"), b'#!/bin/sh\necho installer "$@"\n'
        entry.size, entry.mode = len(script), 0o755
        tar.addfile(entry, io.BytesIO(script))
    right = sha256(archive.read_bytes()).hexdigest()

    def run(expected: str, fetch_lists: str = "echo lists") -> subprocess.CompletedProcess[str]:
        head = f"ADDRESS={archive.as_uri()}\nSHA256={expected}\nFETCH_LISTS='{fetch_lists}'\n"
        return subprocess.run(["sh", "-c", head + software.SCRIPT], env=tools, capture_output=True, text=True)

    done = run(right)
    assert (done.returncode, done.stderr) == (0, "")
    installed = ["installer -y --no-verify", "modprobe -r efa", "modprobe efa", "ldconfig"]
    assert done.stdout.splitlines() == ["lists", *installed]
    without_mirror = run(right, "false")
    assert without_mirror.returncode == 0
    assert without_mirror.stdout.splitlines()[1:] == installed
    other = run("0" * 64)
    assert other.returncode == 1
    assert f"has sha256 {right}, expected {'0' * 64}: not the archive that was reviewed" in other.stderr
    assert other.stdout == ""
