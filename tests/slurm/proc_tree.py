"""A folder like /proc, with the files of the processes that a test needs, and a real process for what none shows."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

STEPD = "/usr/sbin/slurmstepd"


def add_step(proc: Path, pid: int, title: str, *, group: str = "/", program: str = STEPD) -> Path:
    """Write what the kernel shows of a process of Slurm's own that runs a step, and return its folder."""
    return add_process(proc, pid, uid=0, name="slurmstepd", title=title, group=group, program=program)


def add_process(
    proc: Path,
    pid: int,
    *,
    name: str = "python",
    parent: int = 1,
    uid: int = 2000,
    state: str = "S",
    started: int = 100,
    group: str = "/",
    title: str = "",
    program: str = "/usr/bin/python3",
    pending: int = 0,
    threads: int = 1,
) -> Path:
    """Write what the kernel shows of a process, or of a thread in the folder of all, and return its folder."""
    folder = proc / str(pid)
    folder.mkdir(parents=True)
    other_fields = " ".join(["0"] * 15)
    (folder / "stat").write_text(f"{pid} ({name}) {state} {parent} {other_fields} {threads} 0 {started} 0 0\n")
    (folder / "status").write_text(
        f"Name:\t{name}\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\nSigPnd:\t{pending:016x}\nShdPnd:\t{0:016x}\n"
    )
    (folder / "cmdline").write_text(title or name)
    (folder / "exe").symlink_to(program)
    (folder / "cgroup").write_text(f"0::{group}\n")
    return folder


# The main thread ends by itself, once another one runs; Python has no call for it.
_SCRIPT = """
import ctypes, os, platform, threading, time
number = {"x86_64": 60, "aarch64": 93}[platform.machine()]
if os.geteuid() == 0:
    os.setuid(65534)
threading.Thread(target=time.sleep, args=(600,)).start()
ctypes.CDLL(None).syscall(number, 0)
"""


@contextmanager
def start_without_main_thread() -> Iterator[subprocess.Popen[bytes]]:
    """Run a process, of another user than root, whose main thread has ended while another one goes on."""
    process = subprocess.Popen([sys.executable, "-c", _SCRIPT])
    try:
        while read_stat(process.pid)[0] != "Z":
            assert process.poll() is None
            time.sleep(0.02)
        yield process
    finally:
        process.kill()
        process.wait()


def read_stat(pid: int) -> list[str]:
    """Return the fields of a real process from the state on."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
