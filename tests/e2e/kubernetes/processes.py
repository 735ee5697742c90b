"""Processes in a network namespace of their own; all of them end with it."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.harness import wait_until

CGROUPS = Path("/sys/fs/cgroup")
GRACE_S = 10.0


@dataclass
class Namespace:
    """A network namespace with a bridge for pods, and a folder with the logs of its processes."""

    name: str
    folder: Path
    address: str
    """Of the bridge, and so of all nodes and of the control plane."""
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def open(self) -> None:
        """Create the namespace, its loopback and the bridge."""
        (self.folder / "log").mkdir(parents=True)
        ip("netns", "add", self.name)
        ip("-n", self.name, "link", "set", "lo", "up")
        ip("-n", self.name, "link", "add", "pods", "type", "bridge")
        ip("-n", self.name, "address", "add", f"{self.address}/16", "dev", "pods")
        ip("-n", self.name, "link", "set", "pods", "up")

    def close(self) -> None:
        """End all processes and remove the namespace. Abruptly, because nothing that they would save is used again."""
        for name in list(self.processes):
            self.end(name, abruptly=True)
        subprocess.run(["ip", "netns", "delete", self.name], check=False, capture_output=True)

    def enter(self, *command: str | Path) -> list[str]:
        """Return the command line that runs a command in the namespace.

        Not `ip netns exec`: it mounts a new /sys, which hides the cgroups from kubelet and runc.
        """
        return ["nsenter", f"--net=/run/netns/{self.name}", "--", *map(str, command)]

    def start(self, name: str, *command: str | Path, env: Mapping[str, str] | None = None) -> None:
        """Start a process in a group of its own, with its output in a log."""
        with self.log(name).open("ab") as log:
            self.processes[name] = subprocess.Popen(
                self.enter(*command),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(env or {})},
                start_new_session=True,
            )

    def end(self, name: str, *, abruptly: bool = False) -> None:
        """End a process with its group, at once if abruptly."""
        process = self.processes.pop(name)
        with suppress(ProcessLookupError):
            if not abruptly:
                os.killpg(process.pid, signal.SIGTERM)
                with suppress(subprocess.TimeoutExpired):
                    process.wait(GRACE_S)
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def log(self, name: str) -> Path:
        """Return the log of a process."""
        return self.folder / "log" / f"{name}.log"

    def read_log_ends(self) -> str:
        """Return the ends of all logs, for the message of a failure."""
        parts = []
        for path in sorted((self.folder / "log").iterdir()):
            lines = path.read_text(errors="replace").splitlines()[-15:]
            parts.append("\n".join([f"== {path.name}", *lines]))
        return "\n".join(parts)


def ip(*arguments: str) -> None:
    """Run iproute2."""
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


def list_hierarchies() -> list[Path]:
    """Return the roots of the cgroup hierarchies: that of version 2, or all where the machine has version 1 too."""
    if (CGROUPS / "cgroup.controllers").exists():
        return [CGROUPS]
    return [path for path in sorted(CGROUPS.iterdir()) if (path / "cgroup.procs").exists()]


def make_cgroup(name: str) -> None:
    """Create a cgroup below the root of every hierarchy."""
    for root in list_hierarchies():
        (root / name).mkdir(exist_ok=True)
        for setting in ("cpuset.cpus", "cpuset.mems"):
            if (root / "cgroup.clone_children").exists() and (root / setting).exists():
                # Empty at first, and then no process can enter.
                (root / name / setting).write_text((root / setting).read_text())


def kill_cgroup(name: str) -> None:
    """Kill all processes in a cgroup and those below it."""
    for pid in list_pids(name):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def remove_cgroup(name: str) -> None:
    """Remove a cgroup and those below it, in every hierarchy, once their processes have ended."""
    wait_until(lambda: not list_pids(name), f"end of the processes in {name}")
    for root in list_hierarchies():
        for folder, _, _ in os.walk(root / name, topdown=False):
            os.rmdir(folder)


def list_pids(name: str, part: str = "") -> set[int]:
    """Return the processes in a cgroup and those below it whose path has this part."""
    pids: set[int] = set()
    for root in list_hierarchies():
        for file in (root / name).rglob("cgroup.procs"):
            if part in str(file):
                with suppress(OSError):
                    pids |= {int(line) for line in file.read_text().split()}
    return pids


def find_processes(argument: str) -> Iterator[int]:
    """Yield the processes of this machine that have an argument with this text in their command line."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with suppress(OSError):
                if argument.encode() in (entry / "cmdline").read_bytes():
                    yield int(entry.name)
