"""Another time for programs that come over SSH: containers share the clock of this machine."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from infra.targets.local.upgrade import ContainerTransport

SOURCE = Path(__file__).with_suffix(".c")
LIBRARY = "/usr/local/lib/wrong_clock.so"
# `reload` would return before sshd listens again, and the next connection be refused.
WRONG_CLOCK = """cat >/etc/ssh/sshd_config.d/00-clock.conf <<'END'
SetEnv LD_PRELOAD={library} CLOCK_OFFSET_S={offset_s}
END
systemctl restart ssh"""
RIGHT_CLOCK = "rm /etc/ssh/sshd_config.d/00-clock.conf; systemctl restart ssh"


@contextmanager
def shifted_clock(root: ContainerTransport, folder: Path, offset_s: int) -> Iterator[None]:
    """Show another time to what comes over SSH to a machine."""
    library = folder / "wrong_clock.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(library), str(SOURCE)], check=True)
    root.put(LIBRARY, library.read_bytes())
    _run(root, WRONG_CLOCK.format(library=LIBRARY, offset_s=offset_s))
    try:
        yield
    finally:
        _run(root, RIGHT_CLOCK)


def _run(root: ContainerTransport, script: str) -> None:
    done = root.run(script, timeout=60)
    assert done.code == 0, done.err
