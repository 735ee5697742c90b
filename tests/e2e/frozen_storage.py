"""A shared filesystem that hangs like a network mount whose server does, and goes on: FUSE with a server that stops.

Programs that use it meanwhile wait in the kernel, where only SIGKILL ends them, as on a hard NFS mount.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import docker

from cluster import names
from setup.apt import FAULT_TOOLS
from tests.harness import wait_until

SERVER = "bindfs"


def explain_lack() -> str:
    """Return why the faults of hosts cannot be caused here; empty if they can."""
    if missing := [name for name in FAULT_TOOLS if shutil.which(name) is None]:
        return f"{', '.join(missing)} is not installed: run `python3 -m setup fault-tools`"
    if not Path("/dev/fuse").exists():
        return "the kernel has no FUSE: /dev/fuse is missing"
    return "" if os.geteuid() == 0 else "only root can mount a filesystem for containers"


@dataclass(frozen=True)
class FrozenStorage:
    """A Docker volume, and the server behind it."""

    volume: str
    source: str
    """What the kernel's list of mounts shows as its source."""
    server: subprocess.Popen[bytes]

    def freeze(self) -> None:
        """Let the server answer nothing."""
        self.server.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let the server go on, also with what it was asked meanwhile."""
        self.server.send_signal(signal.SIGCONT)


@contextmanager
def open_storage(cluster: str, folder: Path) -> Iterator[FrozenStorage]:
    """Create the volume of a cluster, with its files in a folder; remove it at the end."""
    files, mount = folder / "files", folder / "mount"
    files.mkdir()
    mount.mkdir()
    # Users of the containers are in the files of this machine, so nothing is translated. With names that the kernel
    # remembers, every tenth file that is replaced by renaming is missing for a moment, which muster rejects.
    options = "allow_other,dev,suid,attr_timeout=0,entry_timeout=0"
    server = subprocess.Popen([SERVER, "-f", "-o", options, str(files), str(mount)])
    try:
        wait_until(mount.is_mount, f"{SERVER} serves {mount}", 60)
        volume = docker.from_env().volumes.create(
            names.volume(cluster, "shared"),
            driver="local",
            driver_opts={"type": "none", "o": "bind", "device": str(mount)},
            labels={"muster.cluster": cluster},
        )
        try:
            yield FrozenStorage(str(volume.name), str(files), server)
        finally:
            server.send_signal(signal.SIGCONT)
            volume.remove(force=True)
    finally:
        subprocess.run(["umount", "--lazy", str(mount)], check=False)
        server.kill()
        server.wait()
