"""Store the end of this machine's logs in the cluster's bucket, where they outlive the machine.

Usage: `python -m infra.targets.aws.node.ship_logs REGION BUCKET`. A timer runs it, and systemd when the machine stops.
"""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from infra.targets.aws.node import early, identity, parameters, signed

TAIL_BYTES = 256 * 1024
JOURNAL_LINES = 3000
COMMAND_TIMEOUT_S = 20.0
# A machine that is being terminated has little time, and its bucket may already be gone.
RETRY_FOR_S = 20.0
FILES = ("/var/log/muster/node.log", *(f"/var/log/slurm/{name}.log" for name in ("slurmctld", "slurmdbd", "slurmd")))
_JOURNAL = ("journalctl", "--no-pager", "-o", "short-iso", "-n", str(JOURNAL_LINES))
COMMANDS = (_JOURNAL, (*_JOURNAL, "-k"))

Source = Callable[[], bytes]


def main(region: str, bucket: str) -> int:
    """Store the logs once and return the exit code."""
    try:
        ship(region, bucket, early.read_name(parameters.NODE_TAG))
    except (OSError, RuntimeError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def ship(region: str, bucket: str, node: str) -> None:
    """Store the logs of this machine, which is a node; raise OSError or RuntimeError if that fails."""
    key = parameters.stored(node, identity.read_arn(region))
    signed.store_bytes(region, bucket, key, pack(list_sources()), RETRY_FOR_S)


def list_sources() -> dict[str, Source]:
    """Return how to read each log, by its title."""
    files = {name: partial(read_tail, Path(name)) for name in FILES}
    return {**files, **{" ".join(command): partial(_run, command) for command in COMMANDS}}


def pack(sources: Mapping[str, Source]) -> bytes:
    """Return the logs that exist as one compressed text, each under its title."""
    texts = {title: read() for title, read in sources.items()}
    return gzip.compress(
        b"".join(f"==> {title} <==\n".encode() + text + b"\n" for title, text in texts.items() if text)
    )


def read_tail(path: Path) -> bytes:
    """Return the last lines of a file; nothing if it cannot be read."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - TAIL_BYTES))
            text = file.read()
    except OSError:
        return b""
    return text if size <= TAIL_BYTES else text.partition(b"\n")[2]


def _run(command: tuple[str, ...]) -> bytes:
    try:
        done = subprocess.run(command, capture_output=True, timeout=COMMAND_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return b""
    return done.stdout[-TAIL_BYTES:]


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
