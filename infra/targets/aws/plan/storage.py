"""Arguments of shared filesystems: FSx for Lustre and EFS."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from cluster.catalog.lustre import find_problems, size_gb, throughput
from cluster.spec import Storage

# EFA requires this version.
_LUSTRE_VERSION = "2.15"
_IMPORTED_EVENTS = ("NEW", "CHANGED", "DELETED")
_EXPORTED_EVENTS = ("NEW", "CHANGED")
"""A file that is deleted on the filesystem stays in the bucket, which is not muster's."""


@dataclass(frozen=True)
class LustrePlan:
    """Arguments of a Lustre filesystem, and of its link to S3 if it has one."""

    file_system: dict[str, Any]
    link: dict[str, Any] | None


def lustre(storage: Storage) -> LustrePlan:
    """Return the arguments of an FSx for Lustre filesystem; raise ValueError for sizes that AWS does not offer."""
    problems = list(find_problems(storage))
    if problems:
        raise ValueError("; ".join(f"{field}: {message}" for field, message in problems))
    arguments: dict[str, Any] = {
        "deployment_type": "PERSISTENT_2",
        "storage_type": "SSD",
        "storage_capacity": size_gb(storage),
        "per_unit_storage_throughput": throughput(storage),
        "file_system_type_version": _LUSTRE_VERSION,
        "data_compression_type": "LZ4",
        "efa_enabled": storage.efa,
        # EFA requires a metadata configuration, which cannot be added later.
        "metadata_configuration": {"mode": "AUTOMATIC"},
        "copy_tags_to_backups": True,
        # By default none: backups of data that also is in S3 would store, and cost, the same twice.
        "automatic_backup_retention_days": storage.backup_days or 0,
        "skip_final_backup": True,
        # Size and throughput must be those of the filesystem that was backed up.
        **({"backup_id": storage.from_backup} if storage.from_backup else {}),
    }
    return LustrePlan(arguments, _link(storage.s3) if storage.s3 else None)


def efs() -> dict[str, Any]:
    """Return the arguments of an EFS filesystem."""
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
    """Return a link of the bucket to a folder with its name: changes go in both directions, deletions only from S3."""
    bucket = urlsplit(address).netloc
    return {
        "data_repository_path": address,
        "file_system_path": f"/{bucket}",
        "batch_import_meta_data_on_create": True,
        "s3": {
            "auto_import_policy": {"events": list(_IMPORTED_EVENTS)},
            "auto_export_policy": {"events": list(_EXPORTED_EVENTS)},
        },
    }
