"""One setup at a time: the second one waits and says for whom."""

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

AGAIN_S = 15.0


@contextmanager
def exclusive(path: Path, say: Callable[[str], None]) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+") as file:
        _wait(file.fileno(), path, say)
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def _wait(descriptor: int, path: Path, say: Callable[[str], None]) -> None:
    started = time.monotonic()
    said = -AGAIN_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            waited = time.monotonic() - started
            if waited - said >= AGAIN_S:
                holder = path.read_text().strip() or "unknown"
                say(f"another setup (process {holder}) is at work; waiting for it to finish ({waited:.0f} s)")
                said = waited
            time.sleep(0.1)
