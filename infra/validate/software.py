"""Rules on software: the lock file must be a file of this repository."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from cluster.spec import ClusterSpec
from cluster.spec.issue import Issue, error

WHERE = "software.training_lock"


def check_lock_path(spec: ClusterSpec) -> Iterator[Issue]:
    """Refuse a lock file outside the repository."""
    path = PurePosixPath(spec.software.training_lock)
    if path.is_absolute() or ".." in path.parts or not path.name:
        message = f"'{path}' is outside the repository; allowed: a path relative to its root"
        yield error("lock_path", WHERE, message, "write for example `training_lock: trainer/requirements.lock`")


def check_lock_exists(spec: ClusterSpec, root: Path) -> Iterator[Issue]:
    """Refuse a lock file that does not exist."""
    if not any(check_lock_path(spec)) and not (root / spec.software.training_lock).is_file():
        message = f"'{spec.software.training_lock}' does not exist in {root}"
        yield error("lock_missing", WHERE, message, "name an existing lock file, or remove the line")
