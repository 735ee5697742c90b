"""Ends the provider process when the Pulumi engine that started it is gone, so that a killed `up` creates nothing more.

The engine starts the provider through a shell that stays in between, so neither a signal nor a closed pipe tells it.
What else the engine started (a language host, providers not yet in use) would stay for minutes or for ever; it goes."""

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


def start_in_provider_process() -> None:
    """Does nothing in the Pulumi program, in tests and in commands: only `python -m pulumi.dynamic` is watched."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    if spec is None or spec.name != "pulumi.dynamic.__main__":
        return
    threading.Thread(target=_watch, name="orphan-watch", daemon=True).start()


def _watch() -> None:
    chain = _ancestors_to_engine()
    started: dict[int, str] = {}
    while chain and all(_parent(child) == parent for child, parent in chain):
        started = _descendants(chain[-1][1]) or started
        time.sleep(_PERIOD_S)
    for pid, born in started.items():
        if pid != os.getpid() and _born(pid) == born:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
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


def _descendants(pid: int) -> dict[int, str]:
    """Ids of all processes below one, each with the moment it was born: ids are used again."""
    found: dict[int, str] = {}
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            for child in map(int, file.read_text().split()):
                found[child] = _born(child)
                found |= _descendants(child)
    return found


def _parent(pid: int) -> int:
    """0 where there is no such process; a dead parent's children belong to another one."""
    return int(_stat(pid)[1])


def _born(pid: int) -> str:
    return _stat(pid)[19]


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the third on: the name before them may hold anything."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ["0"] * 20


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""
