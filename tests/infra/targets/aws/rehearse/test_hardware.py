"""Hardware stand-ins: set-up accepts the versions that they show, and the health checks their devices."""

from __future__ import annotations

import pytest

from cluster.catalog.instances import instance
from infra.targets.aws.rehearse.hardware import list_hardware_files
from slurm.health import gpu
from slurm.health.check import Expected


def test_a_machine_without_gpus_or_fabric_has_no_stand_ins() -> None:
    assert list_hardware_files(instance("m7i.large"), efa=False) == {}


@pytest.mark.parametrize("name", ["g6.8xlarge", "p5en.48xlarge"])
def test_every_gpu_and_fabric_device_of_the_type_shows(name: str) -> None:
    machine = instance(name)
    files = list_hardware_files(machine, efa=True)
    devices = [path for path in files if path.endswith("/device/vendor")]
    assert len(devices) == machine.efa_interfaces
    rows = files["usr/bin/nvidia-smi"].content.partition("<<'ROWS'\n")[2].removesuffix("ROWS\n")
    assert gpu.judge(rows, Expected(gpus=machine.gpus.count)) == []
    assert ("usr/bin/nv-fabricmanager" in files) is (machine.nvlink is not None)
