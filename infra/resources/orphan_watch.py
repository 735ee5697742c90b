"""End the provider process when the Pulumi engine that started it is gone, so that a killed `up` creates nothing more.

The engine starts the provider through a shell, so the provider gets neither a signal nor a closed pipe when the engine
dies. Other processes of the engine (a language host, unused providers) could stay forever; they are ended too.
"""

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
_PLUGIN_MARKS = (b"pulumi.dynamic", b"/pulumi-resource-", b"pulumi-language-")
_LATE_PLUGINS_S = 3.0


def start_in_provider_process() -> None:
    """Start the watch in `python -m pulumi.dynamic`; do nothing in the Pulumi program, in tests and in commands."""
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
    for pid, start_time in started.items():
        if pid != os.getpid() and _start_time(pid) == start_time:
            _kill(pid)
    # A plugin that was just starting is not among them; without an engine it would wait forever.
    until = time.monotonic() + _LATE_PLUGINS_S
    while time.monotonic() < until:
        for pid in _orphaned_plugins():
            _kill(pid)
        time.sleep(_PERIOD_S)
    os._exit(1)


def _kill(pid: int) -> None:
    with suppress(OSError):
        os.kill(pid, signal.SIGKILL)


def _orphaned_plugins() -> list[int]:
    """Return the plugins of this session that have no engine above them, without this process and its parents."""
    session, own = os.getsid(0), {os.getpid(), os.getppid()}
    pids = [int(folder.name) for folder in Path("/proc").glob("[0-9]*")]
    return [p for p in pids if p not in own and _session(p) == session and _is_plugin(p) and not _has_engine(p)]


def _is_plugin(pid: int) -> bool:
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
    return any(mark in command for mark in _PLUGIN_MARKS)


def _has_engine(pid: int) -> bool:
    while (pid := _parent(pid)) > 1:
        if _name(pid) == _ENGINE:
            return True
    return False


def _session(pid: int) -> int:
    return int(_stat(pid)[3])


def _ancestors_to_engine() -> list[tuple[int, int]]:
    """Return (child, parent) pairs from this process up to the engine; empty if there is no engine."""
    chain, child = [], os.getpid()
    while (parent := _parent(child)) > 1:
        chain.append((child, parent))
        if _name(parent) == _ENGINE:
            return chain
        child = parent
    return []


def _descendants(pid: int) -> dict[int, str]:
    """Return the ids of all descendants, each with its start time, because ids are reused."""
    start_times: dict[int, str] = {}
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            for child in map(int, file.read_text().split()):
                start_times[child] = _start_time(child)
                start_times |= _descendants(child)
    return start_times


def _parent(pid: int) -> int:
    """Return the parent's id, 0 if there is no such process; children of a dead process get another parent."""
    return int(_stat(pid)[1])


def _start_time(pid: int) -> str:
    return _stat(pid)[19]


def _stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat from the third on; the name before them may hold any character."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ["0"] * 20


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""
