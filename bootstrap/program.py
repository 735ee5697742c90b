"""Pack packages of Slurm's code and what they import of ours as one file that a node's own Python runs."""

from __future__ import annotations

import io
import zipfile
from functools import cache
from pathlib import Path

# Modules next to the packages: `control` imports `hostlist`, and checks of processes `user_ids`.
_MODULES = ("cluster/__init__.py", "cluster/user_ids.py", "slurm/__init__.py", "slurm/hostlist.py")
# Next to the packages too: it decides where they are imported from.
_UNPACK = "unpack_program"


@cache  # Every node gets the same file, and a plan compares it with the facts of each node.
def pack_program(root: Path, packages: tuple[str, ...], start: str) -> bytes:
    """Return a zip file with packages of `slurm` that begins with the line `start`; same sources, same bytes."""
    sources = [path for package in packages for path in sorted((root / "slurm" / package).glob("*.py"))]
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for path in (*(root / module for module in _MODULES), *sources):
            archive.writestr(_entry(str(path.relative_to(root))), path.read_bytes())
        archive.writestr(_entry(f"{_UNPACK}.py"), (root / "bootstrap" / f"{_UNPACK}.py").read_bytes())
        archive.writestr(_entry("__main__.py"), f"import {_UNPACK}; {_UNPACK}.use_unpacked()\n{start}")
    return buffer.getvalue()


def _entry(name: str) -> zipfile.ZipInfo:
    return zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))
