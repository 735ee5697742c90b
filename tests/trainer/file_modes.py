"""Work in a process that obeys file modes: root, who runs the tests, ignores them."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tests.trainer.forks import fork_context


def call_without_permissions(work: Callable[[Path], Any], folder: Path) -> Any:
    """Return the answer of a function in a process that obeys file modes, as its children do."""
    context = fork_context()
    ours, theirs = context.Pipe()
    process = context.Process(target=_answer, args=(work, folder, theirs), daemon=True)
    process.start()
    theirs.close()
    assert ours.poll(60)
    answer = ours.recv()
    process.join()
    return answer


def _answer(work: Callable[[Path], Any], folder: Path, end: Connection) -> None:
    _obey_file_modes()
    end.send(work(folder))


def _obey_file_modes() -> None:
    """Drop the capability by which root ignores file modes, for this process and its children."""
    if os.geteuid() != 0:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    override, drop_from_bounding_set = 1, 24
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    sets = (ctypes.c_uint32 * 6)()
    assert libc.prctl(drop_from_bounding_set, override, 0, 0, 0) == 0
    assert libc.capget(header, sets) == 0
    for word in range(3):
        sets[word] &= ~(1 << override)
    assert libc.capset(header, sets) == 0
