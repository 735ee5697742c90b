"""The files by which a machine's GPUs and fabric are recognized: versions are those of the reviewed image."""

from __future__ import annotations

import json
from collections.abc import Mapping

from cluster.catalog import software
from cluster.catalog.instances import InstanceType
from infra.targets.aws.plan.machines import count_links
from infra.targets.aws.rehearse.file import File
from infra.targets.aws.rehearse.imex import list_imex_files
from slurm.health import gpu

_PROGRAM = 0o755
_EFA_VENDOR = "0x1d0f"
_OPT = "opt/amazon"


def list_hardware_files(instance_type: InstanceType, *, efa: bool) -> dict[str, File]:
    """Return, by path without the leading slash, what shows a machine's GPUs, driver and fabric."""
    files: dict[str, File] = {}
    if instance_type.gpus.count:
        files |= _list_gpu_files(instance_type)
    if instance_type.ultraserver:
        files |= list_imex_files()
    if efa:
        files |= _list_efa_files(instance_type)
    return files


def _list_gpu_files(instance_type: InstanceType) -> dict[str, File]:
    driver = _version("driver")
    banner = f"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {driver}  Release Build\n"
    # One row per GPU: index, no memory errors, nothing to remap, not slowed down.
    rows = "".join(f"{index}, 0, 0, 0, 0x0000000000000000\n" for index in range(instance_type.gpus.count))
    outputs = {f"--query-gpu={','.join(gpu.FIELDS)} --format=csv,noheader,nounits": rows}
    if links := count_links(instance_type):
        outputs["nvlink --status"] = _render_links(instance_type, links)
    files = {
        "proc/driver/nvidia/version": File(banner),
        "usr/bin/nvidia-smi": File(_render_program("nvidia-smi", outputs), _PROGRAM),
        "usr/bin/dcgmi": File(_render_program("dcgmi", _list_diagnoses(instance_type.gpus.count)), _PROGRAM),
    }
    if instance_type.nvlink:
        manager = f"#!/bin/sh\necho 'Fabric Manager version is : {driver}'\n"
        files["usr/bin/nv-fabricmanager"] = File(manager, _PROGRAM)
    return files


def _list_diagnoses(gpus: int) -> dict[str, str]:
    """Return what DCGM prints at each level of its diagnosis of healthy GPUs."""
    results = [{"entity_group": "GPU", "entity_id": gpu, "status": "Pass"} for gpu in range(gpus)]
    tests = [{"name": "software", "results": results, "test_summary": {"status": "Pass"}}]
    report = {"DCGM Diagnostic": {"test_categories": [{"category": "Deployment", "tests": tests}]}}
    return {f"diag -r {level} -j": f"{json.dumps(report)}\n" for level in (1, 2, 3)}


def _render_links(instance_type: InstanceType, links: int) -> str:
    """Return what `nvidia-smi nvlink --status` prints of GPUs whose links are all up."""
    rows = "".join(f"\t Link {link}: 26.562 GB/s\n" for link in range(links))
    return "".join(f"GPU {index}: {instance_type.gpus.name}\n{rows}" for index in range(instance_type.gpus.count))


def _render_program(name: str, outputs: Mapping[str, str]) -> str:
    """Return a shell script that prints the output of the given arguments, and fails with any others."""
    cases = "".join(f"  '{arguments}') cat <<'ROWS'\n{text}ROWS\n  ;;\n" for arguments, text in outputs.items())
    return f'#!/bin/sh\ncase "$*" in\n{cases}  *) echo "{name} stand-in: $*" >&2; exit 1 ;;\nesac\n'


def _list_efa_files(instance_type: InstanceType) -> dict[str, File]:
    libfabric = _version("libfabric")
    files = {
        f"{_OPT}/efa_installed_packages": File(f"# EFA installer version: {_version('efa_installer')}\n"),
        f"{_OPT}/efa/bin/fi_info": File(f"#!/bin/sh\necho 'libfabric: {libfabric}amzn1.0'\n", _PROGRAM),
        f"{_OPT}/ofi-nccl/banner": File(f"NET/OFI Initializing aws-ofi-nccl {_version('aws_ofi_nccl')}\0"),
        "sys/module/efa/version": File(f"{_version('efa')}g\n"),
    }
    for index in range(instance_type.efa_interfaces):
        device = f"sys/class/infiniband/rdmap{index}s0"
        files[f"{device}/device/vendor"] = File(f"{_EFA_VENDOR}\n")
        files[f"{device}/ports/1/state"] = File("4: ACTIVE\n")
    return files


def _version(component: str) -> str:
    version = software.components()[component].version
    if not version:
        raise ValueError(f"the software table has no version of {component}")
    return version
