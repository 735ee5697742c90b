"""Run a script in a container and get all of its output.

Docker sometimes returns an empty output of a short command on a busy machine (docker/docker-py issue 2042). So the
output also goes to a file, which is read if its end is missing.
"""

from __future__ import annotations

import io
import tarfile
import uuid
from collections.abc import Sequence
from dataclasses import dataclass

from docker.errors import NotFound
from docker.models.containers import Container

SH, BASH = ("sh", "-c"), ("bash", "-c")
_SCRIPT = '"$@" >"$MUSTER_TEST_OUTPUT" 2>&1; code=$?; cat "$MUSTER_TEST_OUTPUT"; echo "$MUSTER_TEST_OUTPUT"; exit $code'


@dataclass(frozen=True)
class Done:
    """Exit code and output of a script."""

    code: int
    out: str


def run_script(
    container: Container,
    script: str,
    *,
    shell: Sequence[str] = SH,
    environment: dict[str, str] | None = None,
    workdir: str | None = None,
) -> Done:
    """Run a script, and return its exit code and output."""
    path = f"/var/tmp/output-{uuid.uuid4().hex}"
    code, printed = container.exec_run(
        ["sh", "-c", _SCRIPT, "sh", *shell, script],
        environment={**(environment or {}), "MUSTER_TEST_OUTPUT": path},
        workdir=workdir,
    )
    out: str = printed.decode(errors="replace")
    end = f"{path}\n"
    return Done(code, out.removesuffix(end) if out.endswith(end) else _read(container, path) or out)


def _read(container: Container, path: str) -> str:
    """Return the content of a file; a machine that ended during the script has what it printed until then."""
    try:
        packed, _ = container.get_archive(path)
    except NotFound:
        return ""
    with tarfile.open(fileobj=io.BytesIO(b"".join(packed))) as archive:
        content = archive.extractfile(archive.next() or path)
        return content.read().decode(errors="replace") if content else ""
