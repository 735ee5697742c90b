"""The software table: versions are parsed from real program output and compared with the allowed ones."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cluster.catalog import software
from cluster.catalog.software import Hardware, components
from tests.cluster.catalog.software_output import CLOSED_DRIVER, EFA, FI_INFO, GOOD, MANAGER, OPEN_DRIVER

ROOT = Path(__file__).parents[3]
P5: tuple[Hardware, ...] = ("gpu", "nvswitch", "efa")
LOCK = (ROOT / "trainer/requirements.lock").read_text()


@pytest.mark.parametrize(
    ("name", "text", "version"),
    [
        ("driver", OPEN_DRIVER, "580.126.09"),
        ("driver", CLOSED_DRIVER, "550.135"),
        ("driver", "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n", ""),
        ("fabric_manager", MANAGER, "535.161.08"),
        ("efa_installer", EFA, "1.22.0"),
        ("efa", "2.17.3g\n", "2.17.3"),
        ("libfabric", FI_INFO, "1.19.0"),
        ("libfabric", "fi_info: 2.1.0rc1\nlibfabric: 2.1.0rc1\nlibfabric api: 2.1\n", "2.1.0"),
        ("aws_ofi_nccl", "Initializing aws-ofi-nccl 1.13.2-aws\n", "1.13.2"),
        ("aws_ofi_nccl", "Initializing aws-ofi-nccl 1.21.1\n", "1.21.1"),
        ("aws_ofi_nccl", "Initializing aws-ofi-nccl git-6e504db\n", ""),
        ("gdrcopy", "2.5.1\n", "2.5.1"),
        ("lustre", "2.15.6\n", "2.15.6"),
        ("lustre", "2.12.8_198_gde6aa4c\n", "2.12.8"),
        ("kernel", "6.8.0-1066-aws\n", "6.8.0"),
        ("nccl", "nvidia-nccl-cu12==2.26.2 ; sys_platform == 'linux' \\\n", "2.26.2"),
    ],
)
def test_versions_are_parsed_from_program_output(name: str, text: str, version: str) -> None:
    assert components()[name].parse_version(text) == version


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, []),
        ({"driver": OPEN_DRIVER.replace("580.126.09", "595.91.07"),
          "fabric_manager": "Fabric Manager version is : 595.91.07"}, []),
        ({"driver": CLOSED_DRIVER, "fabric_manager": "Fabric Manager version is : 550.135"},
         ["NVIDIA driver 550.135; allowed: 580 or newer (the training environment has CUDA 13, "
          "which older branches cannot run)"]),
        ({"driver": ""},
         ["NVIDIA driver is missing; allowed: 580 or newer (the training environment has CUDA 13, "
          "which older branches cannot run)",
          "NVIDIA fabric manager 580.126.09; allowed: the same, the version of NVIDIA driver "
          "(it does not start with a driver of another version, and no GPU works without it)"]),
        ({"fabric_manager": MANAGER},
         ["NVIDIA fabric manager 535.161.08; allowed: 580.126.09, the version of NVIDIA driver "
          "(it does not start with a driver of another version, and no GPU works without it)"]),
        ({"efa_installer": EFA},
         ["EFA installer 1.22.0; allowed: 1.39.0 or newer (since this version it installs an NCCL plugin that "
          "matches its libfabric)"]),
        ({"efa": ""},
         ["EFA kernel module is missing; allowed: 2.12.1 or newer (Lustre over EFA needs it; the module in the "
          "kernel shows no version)"]),
        ({"libfabric": FI_INFO}, ["libfabric 1.19.0; allowed: 1.22.0 or newer (the NCCL plugin needs it)"]),
        ({"aws_ofi_nccl": "Initializing aws-ofi-nccl git-6e504db"},
         ["aws-ofi-nccl shows no version ('Initializing aws-ofi-nccl git-6e504db'); allowed: 1.15.0 or newer "
          "(since this version it supports p6-b200; NCCL_NET=Libfabric needs 1.13)"]),
        ({"aws_ofi_nccl": "Initializing aws-ofi-nccl 1.9.2-aws"},
         ["aws-ofi-nccl 1.9.2; allowed: 1.15.0 or newer (since this version it supports p6-b200; "
          "NCCL_NET=Libfabric needs 1.13)"]),
        ({"gdrcopy": "2.4.1"},
         ["GDRCopy 2.4.1; allowed: 2.5 or newer (NCCL's GPU-initiated networking needs it; collectives work without "
          "GDRCopy)"]),
        ({"gdrcopy": ""}, []),
        ({"gdrcopy": "2.5.0"}, []),
        ({"nccl": "nvidia-nccl-cu12==2.21.5"},
         ["NCCL 2.21.5; allowed: 2.24.0 or newer (2.21 to 2.23 ignore errors of the plugin, so that jobs hang instead "
          "of failing)"]),
    ],
)  # fmt: skip
def test_faults_of_a_machine_with_all_hardware(change: dict[str, str], expected: list[str]) -> None:
    assert [str(fault) for fault in software.find_faults(software.list_required(P5), GOOD | change)] == expected


def test_components_that_will_be_installed_are_not_faults() -> None:
    bare = {name: text for name, text in GOOD.items() if name in ("driver", "fabric_manager")}
    chosen = software.list_required(P5)
    assert [component.name for component in software.list_missing(chosen, bare)] == ["efa_installer"]
    assert software.find_faults(chosen, bare) == []
    assert software.list_missing(chosen, GOOD) == ()


@pytest.mark.parametrize(
    ("parts", "names"),
    [
        ((), set()),
        (("gpu",), {"driver", "nccl"}),
        (("efa",), {"efa_installer", "efa", "libfabric"}),
        (("gpu", "nvswitch"), {"driver", "nccl", "fabric_manager"}),
        (("lustre",), {"lustre", "kernel"}),
    ],
)
def test_required_components_depend_on_the_hardware(parts: tuple[Hardware, ...], names: set[str]) -> None:
    assert {component.name for component in software.list_required(parts)} == names


def test_the_lock_file_has_an_allowed_version_of_nccl() -> None:
    expected = software.read_lock(LOCK)
    assert set(expected) == {"nccl"}
    assert software.find_faults([components()["nccl"]], expected) == []
    assert software.read_lock("torch==2.15.0\n") == {}


def test_the_oldest_driver_supports_the_cuda_of_the_lock_file() -> None:
    """Compare with docs.nvidia.com/cuda/cuda-toolkit-release-notes: CUDA 13 runs on 580 and newer."""
    cuda = re.search(r"(?m)^cuda-toolkit==(\d+)\.", LOCK)
    assert cuda
    assert {"13": "580"}[cuda[1]] == components()["driver"].least


@pytest.mark.parametrize("component", components().values(), ids=lambda component: component.name)
def test_every_entry_is_consistent(component: software.Component) -> None:
    assert component.source.startswith("https://")
    assert [bool(component.file), bool(component.command), component.lock].count(True) == 1
    assert bool(component.least) != bool(component.same_as)
    for name in (component.same_as, component.installer):
        assert not name or name in components()
    if component.version:
        assert (
            software.find_faults(
                [component],
                {
                    component.name: f"Kernel Module {component.version}"
                    if component.name == "driver"
                    else _print_version(component)
                },
            )
            == []
        )
    if component.install:
        assert component.version in component.install.address
        assert re.fullmatch(r"[0-9a-f]{64}", component.install.sha256)


def _print_version(component: software.Component) -> str:
    """Return the output of a node that has the reviewed version."""
    before = {"efa_installer": "# EFA installer version: ", "libfabric": "libfabric: ", "aws_ofi_nccl": "aws-ofi-nccl "}
    return f"{before.get(component.name, '')}{component.version}"
