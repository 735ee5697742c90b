"""Hardware stand-ins: set-up accepts the versions that they show, and the health checks their devices."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from cluster.catalog.instances import instance
from infra.targets.aws.plan.machines import count_links
from infra.targets.aws.rehearse.hardware import list_hardware_files
from slurm.health import dcgm, gpu, nvlink
from slurm.health.check import Check, Expected


def test_a_machine_without_gpus_or_fabric_has_no_stand_ins() -> None:
    assert list_hardware_files(instance("m7i.large"), efa=False) == {}


@pytest.mark.parametrize("name", ["g6.8xlarge", "g6e.24xlarge", "p5.48xlarge", "p5en.48xlarge"])
def test_every_gpu_link_and_fabric_device_of_the_type_shows(name: str, tmp_path: Path) -> None:
    machine = instance(name)
    files = list_hardware_files(machine, efa=True)
    devices = [path for path in files if path.endswith("/device/vendor")]
    assert len(devices) == machine.efa_interfaces
    program = tmp_path / "nvidia-smi"
    program.write_text(files["usr/bin/nvidia-smi"].content)
    program.chmod(0o755)
    expected = Expected(gpus=machine.gpus.count, nvlinks=count_links(machine))
    for check in (gpu.CHECK, *([nvlink.CHECK] if machine.nvlink else [])):
        assert judge(check, program, expected) == []
    diagnosis = tmp_path / "dcgmi"
    diagnosis.write_text(files["usr/bin/dcgmi"].content)
    diagnosis.chmod(0o755)
    for level in (1, 2, 3):
        done = subprocess.run([diagnosis, "diag", "-r", str(level), "-j"], text=True, capture_output=True, check=True)
        assert f'"entity_id": {machine.gpus.count - 1}, "status": "Pass"' in done.stdout
        assert dcgm.judge(done.stdout, expected) == []
    assert ("usr/bin/nv-fabricmanager" in files) is (machine.nvlink is not None)
    assert subprocess.run([program, "--reset"], capture_output=True, check=False).returncode == 1


def judge(check: Check, program: Path, expected: Expected) -> list[str]:
    """Return what a health check finds on a machine with this nvidia-smi."""
    script = check.command(expected).replace("nvidia-smi", str(program), 1)
    output = subprocess.run(["sh", "-c", script], text=True, capture_output=True, check=True).stdout
    return check.judge(output, expected)
