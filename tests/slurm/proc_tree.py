"""A folder like /proc, with the files of the processes that a test needs."""

from __future__ import annotations

from pathlib import Path


def add_process(  # noqa: PLR0913  # one per value that the kernel shows
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
    pending: int = 0,
) -> Path:
    """Write what the kernel shows of a process, and return its folder."""
    folder = proc / str(pid)
    folder.mkdir(parents=True)
    other_fields = " ".join(["0"] * 17)
    (folder / "stat").write_text(f"{pid} ({name}) {state} {parent} {other_fields} {started} 0 0\n")
    (folder / "status").write_text(
        f"Name:\t{name}\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\nSigPnd:\t{pending:016x}\nShdPnd:\t{0:016x}\n"
    )
    (folder / "cmdline").write_text(title or name)
    (folder / "cgroup").write_text(f"0::{group}\n")
    return folder
