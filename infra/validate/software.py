"""Rules about software: the lock file is a file of this repository."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from cluster.spec import ClusterSpec
from cluster.spec.issue import Issue, error

WHERE = "software.training_lock"


def training_lock(spec: ClusterSpec) -> Iterator[Issue]:
    path = PurePosixPath(spec.software.training_lock)
    if path.is_absolute() or ".." in path.parts or not path.name:
        message = f"'{path}' leaves the repository; allowed: a path relative to its root"
        yield error("lock_path", WHERE, message, "write for example `training_lock: trainer/requirements.lock`")


def lock_exists(spec: ClusterSpec, root: Path) -> Iterator[Issue]:
    if not any(training_lock(spec)) and not (root / spec.software.training_lock).is_file():
        message = f"'{spec.software.training_lock}' does not exist in {root}"
        yield error("lock_missing", WHERE, message, "name an existing lock file, or remove the line")
