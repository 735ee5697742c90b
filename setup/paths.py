"""The paths of setup: the repository, the cache that outlives it, scratch directories and the setup lock."""

import fcntl
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from setup import pins

REPEAT_S = 15.0


@dataclass(frozen=True)
class Paths:
    """The two directories that setup works in, and the places inside them."""

    root: Path
    cache: Path

    @classmethod
    def from_environment(cls) -> "Paths":
        """Return this repository and the cache named by MUSTER_CACHE, by default ~/.cache/muster."""
        cache = os.environ.get("MUSTER_CACHE") or Path.home() / ".cache" / "muster"
        return cls(root=Path(__file__).resolve().parent.parent, cache=Path(cache).absolute())

    @property
    def venv(self) -> Path:
        return self.root / ".venv"

    @property
    def pulumi(self) -> Path:
        return self.cache / "pulumi" / pins.PULUMI

    @property
    def logs(self) -> Path:
        return self.cache / "logs"

    @property
    def record(self) -> Path:
        return self.logs / "setup.json"

    @property
    def scratch(self) -> Path:
        return self.cache / "tmp"


@contextmanager
def scratch_directory(paths: Paths, name: str) -> Iterator[Path]:
    """Provide an empty directory for unfinished work and remove it afterwards.

    Finished results are renamed out of it, so that an interrupted run never leaves something that looks complete.
    Anything that a killed run left here is removed first.
    """
    directory = paths.scratch / name
    _remove(directory)
    directory.mkdir(parents=True)
    try:
        yield directory
    finally:
        _remove(directory)


def _remove(directory: Path) -> None:
    # Use rm, because rmtree would descend into file systems that a killed debootstrap left mounted.
    if directory.exists():
        subprocess.run(["rm", "-rf", "--one-file-system", str(directory)], check=False)


@contextmanager
def exclusive_lock(path: Path, report: Callable[[str], None]) -> Iterator[None]:
    """Hold the lock that allows only one setup at a time; `report` gets messages while another setup holds it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+") as file:
        _acquire(file.fileno(), path, report)
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def _acquire(descriptor: int, path: Path, report: Callable[[str], None]) -> None:
    started = time.monotonic()
    reported = -REPEAT_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            waited = time.monotonic() - started
            if waited - reported >= REPEAT_S:
                holder = path.read_text().strip() or "unknown"
                report(f"another setup (process {holder}) is running; waiting for it to finish ({waited:.0f} s)")
                reported = waited
            time.sleep(0.1)
