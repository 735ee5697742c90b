"""Run a packed program from a folder: Python caches the bytecode of files, but not that of modules in a zip file.

`program.py` packs this file with each program. Without the cache, Python compiles every module at each start: that
takes most of the time of a health check.
"""

from __future__ import annotations

import os
import sys

INSTALLED = "/etc/muster"
"""Folder of the programs of a node; those that lie elsewhere are not unpacked."""
UNPACKED = "/run/muster/programs"
"""Only root can write to it, and it is empty after a boot."""


def use_unpacked() -> None:
    """Let the program import its modules from its folder, if that exists or can be created."""
    archive = sys.path[0]
    if os.path.dirname(archive) != INSTALLED:
        return
    try:
        status = os.stat(archive)
        # A new release of the program is a new file.
        folder = f"{UNPACKED}/{os.path.basename(archive)}-{status.st_ino:x}-{status.st_mtime_ns:x}"
        if not os.path.exists(folder):
            _unpack(archive, folder)
    except OSError:
        # The disk is full, or the user of a container's task starts it first: it runs from the zip file.
        return
    sys.path[0] = folder


def _unpack(archive: str, folder: str) -> None:
    """Create the folder with all its files at once: of several processes that start, the first one wins."""
    import shutil  # noqa: PLC0415  # only the first start after a boot needs them
    import tempfile  # noqa: PLC0415  # as above
    import zipfile  # noqa: PLC0415  # as above

    # Tasks of users start the program of containers.
    umask = os.umask(0o022)
    try:
        os.makedirs(UNPACKED, exist_ok=True)
        new = tempfile.mkdtemp(dir=UNPACKED)
        try:
            with zipfile.ZipFile(archive) as packed:
                packed.extractall(new)
            os.chmod(new, 0o755)  # noqa: S103  # every user may run the program, and its files are no secret
            os.rename(new, folder)
        except OSError:
            shutil.rmtree(new, ignore_errors=True)
            if not os.path.exists(folder):
                raise
    finally:
        os.umask(umask)
