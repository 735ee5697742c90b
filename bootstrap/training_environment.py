"""The training environment's folder: named by everything that determines its content."""

from __future__ import annotations

from hashlib import sha256

from cluster.inventory import Interpreter


def environment_folder(shared: str, lock: bytes, interpreter: Interpreter | None) -> str:
    """Return the folder of the environment of a lock file and, if it is pinned, an interpreter."""
    return f"{shared}/env/{sha256(lock + list_archives(interpreter)).hexdigest()[:16]}"


def list_archives(interpreter: Interpreter | None) -> bytes:
    """Return the interpreter's archives as training-env.sh reads them: a line `machine sha256 address` for each."""
    archives = interpreter.archives if interpreter else {}
    return "".join(
        f"{machine} {archive.sha256} {archive.url}\n" for machine, archive in sorted(archives.items())
    ).encode()
