"""Arguments of shared filesystems: FSx for Lustre with its steps of size and throughput, and EFS."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from cluster.spec import Storage

THROUGHPUTS = (125, 250, 500, 1000)
"""MB/s per TiB of PERSISTENT_2 (docs.aws.amazon.com/fsx/latest/LustreGuide/managing-throughput-capacity.html)."""
SMALLEST_GB = 1200
STEP_GB = 2400
# docs.aws.amazon.com/fsx/latest/LustreGuide/efa-file-systems.html
EFA_SMALLEST_GB = {125: 38400, 250: 19200, 500: 9600, 1000: 4800}
DEFAULT_THROUGHPUT = 250
# Newer than the kernel's client, and what EFA needs.
_LUSTRE_VERSION = "2.15"
_EVENTS = ("NEW", "CHANGED", "DELETED")


@dataclass(frozen=True)
class LustrePlan:
    """Arguments of the file system, and of its link to S3 where it has one."""

    file_system: dict[str, Any]
    link: dict[str, Any] | None


def lustre(storage: Storage) -> LustrePlan:
    problems = list(lustre_problems(storage))
    if problems:
        raise ValueError("; ".join(f"{field}: {message}" for field, message in problems))
    arguments: dict[str, Any] = {
        "deployment_type": "PERSISTENT_2",
        "storage_type": "SSD",
        "storage_capacity": size(storage),
        "per_unit_storage_throughput": throughput(storage),
        "file_system_type_version": _LUSTRE_VERSION,
        "data_compression_type": "LZ4",
        "efa_enabled": storage.efa,
        # An unset configuration cannot be added later, and EFA wants one.
        "metadata_configuration": {"mode": "AUTOMATIC"},
        "copy_tags_to_backups": True,
        # Data comes from S3, results are copied back: a nightly copy of all of it would be paid for twice.
        "automatic_backup_retention_days": 0,
        "skip_final_backup": True,
    }
    return LustrePlan(arguments, _link(storage.s3) if storage.s3 else None)


def size(storage: Storage) -> int:
    smallest = EFA_SMALLEST_GB[throughput(storage)] if storage.efa else SMALLEST_GB
    return storage.size_gb or smallest


def throughput(storage: Storage) -> int:
    return storage.throughput or DEFAULT_THROUGHPUT


def lustre_problems(storage: Storage) -> Iterator[tuple[str, str]]:
    """(field, message) of every rule of FSx that the storage breaks."""
    if throughput(storage) not in THROUGHPUTS:
        yield "throughput", f"{storage.throughput} is not sold; allowed: {', '.join(map(str, THROUGHPUTS))}"
        return
    if size(storage) != SMALLEST_GB and size(storage) % STEP_GB:
        yield "size_gb", f"{storage.size_gb} is not sold; allowed: {SMALLEST_GB}, or a multiple of {STEP_GB}"
    smallest = EFA_SMALLEST_GB[throughput(storage)]
    if storage.efa and size(storage) < smallest:
        yield "size_gb", f"{storage.size_gb} is too small for EFA at {throughput(storage)}; allowed: {smallest} or more"


def efs() -> dict[str, Any]:
    return {
        "encrypted": True,
        "performance_mode": "generalPurpose",
        "throughput_mode": "elastic",
        "lifecycle_policies": [
            {"transition_to_ia": "AFTER_30_DAYS"},
            {"transition_to_primary_storage_class": "AFTER_1_ACCESS"},
        ],
    }


def _link(address: str) -> dict[str, Any]:
    """What is new on either side appears on the other; files lie below a folder called like the bucket."""
    bucket = urlsplit(address).netloc
    return {
        "data_repository_path": address,
        "file_system_path": f"/{bucket}",
        "batch_import_meta_data_on_create": True,
        "s3": {
            "auto_import_policy": {"events": list(_EVENTS)},
            "auto_export_policy": {"events": list(_EVENTS)},
        },
    }
