"""Ends the provider process when the Pulumi engine that started it is gone, so that a killed `up` creates nothing more.

The engine starts the provider through a shell that stays in between, so neither a signal nor a closed pipe tells it.
The language host beside it would notice only after minutes; it is ended too."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

_PERIOD_S = 0.1
_ENGINE = "pulumi"
_HOST = "pulumi-language"  # the kernel keeps 15 characters of a process name


def start_in_provider_process() -> None:
    """Does nothing in the Pulumi program, in tests and in commands: only `python -m pulumi.dynamic` is watched."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    if spec is None or spec.name != "pulumi.dynamic.__main__":
        return
    threading.Thread(target=_watch, name="orphan-watch", daemon=True).start()


def _watch() -> None:
    chain = _ancestors_to_engine()
    hosts = _language_hosts(chain[-1][1]) if chain else []
    while chain and all(_parent(child) == parent for child, parent in chain):
        time.sleep(_PERIOD_S)
    for host in hosts:
        if _name(host) == _HOST:
            with suppress(OSError):
                os.kill(host, signal.SIGTERM)
    os._exit(1)


def _ancestors_to_engine() -> list[tuple[int, int]]:
    """(child, parent) pairs from this process up to the engine; empty where no engine is above."""
    chain, child = [], os.getpid()
    while (parent := _parent(child)) > 1:
        chain.append((child, parent))
        if _name(parent) == _ENGINE:
            return chain
        child = parent
    return []


def _language_hosts(engine: int) -> list[int]:
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return [pid for pid in pids if _name(pid) == _HOST and _parent(pid) == engine]


def _parent(pid: int) -> int:
    """0 where there is no such process; a dead parent's children belong to another one."""
    try:
        # The name in brackets may hold anything; the parent's id is the second field after it.
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, ValueError):
        return 0


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""
