"""What a machine needs to run a Kubernetes cluster."""

from __future__ import annotations

import os
import shutil

from setup import kubernetes, pins
from setup.paths import Paths

_INSTALLED_PROGRAMS = ("containerd", "ctr", "runc")
"""Programs that come with the Docker engine."""


def find_lacking(paths: Paths) -> list[str]:
    """Return what this machine lacks: programs, and the privileges of root."""
    lacking = [name for name in _INSTALLED_PROGRAMS if shutil.which(name) is None]
    if not kubernetes.locate(paths).is_dir():
        lacking.append(f"Kubernetes {pins.KUBERNETES}")
    return [*lacking, *(["root"] if os.geteuid() else [])]
