"""Run virtual machines with QEMU's emulated processor, which needs no KVM; freeze one, and start copies of it.

An emulated processor is about 20 times slower than a real one. What tests need of such machines is a kernel of their
own.
"""

import json
import platform
import shlex
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from setup.run import SetupError

PROGRAM = "qemu-system-x86_64"
ARCHITECTURE = "x86_64"
KERNEL_ARGUMENTS = (
    "root=/dev/vda rw console=ttyS0 quiet net.ifnames=0 mitigations=off tsc=reliable no_timer_check "
    "random.trust_cpu=on nowatchdog audit=0 systemd.show_status=0 systemd.journald.forward_to_console=1"
)
ANSWER_TIMEOUT_S = 60.0
FREEZE_TIMEOUT_S = 600.0
POLL_S = 0.1
FAILED = "failed"
CONSOLE = "console.log"


@dataclass(frozen=True)
class Image:
    """The files that machines are started from."""

    folder: Path

    @property
    def kernel(self) -> Path:
        return self.folder / "vmlinux"

    @property
    def initramfs(self) -> Path:
        return self.folder / "initramfs"

    @property
    def disk(self) -> Path:
        return self.folder / "disk.qcow2"

    @property
    def memory(self) -> Path:
        """The memory of the machine that was frozen."""
        return self.folder / "memory.zst"


@dataclass(frozen=True)
class Machine:
    """A virtual machine, and the folder with its disk, its console and its sockets."""

    folder: Path
    mac: str
    tap: str
    memory_mb: int
    share: Path
    """Folder of this machine that it can mount by 9p, read-only, with the tag `share`."""

    @property
    def disk(self) -> Path:
        return self.folder / "disk.qcow2"

    @property
    def console(self) -> Path:
        return self.folder / CONSOLE

    @property
    def port(self) -> Path:
        """The socket of the second serial port."""
        return self.folder / "port"

    @property
    def monitor(self) -> Path:
        return self.folder / "monitor"


def explain_lack(architecture: str = platform.machine()) -> str:
    """Return why no machine can run here; empty if the processor is the right one."""
    if architecture == ARCHITECTURE:
        return ""
    return f"the machines are {ARCHITECTURE}, and their kernel comes from packages for this machine: {architecture}"


def render_command(machine: Machine, image: Image, *, frozen: bool) -> list[str]:
    """Return the command line of a machine that boots, or that goes on where another one was frozen.

    QEMU requires the same devices when it freezes a machine and when it goes on.
    """
    return [
        *(PROGRAM, "-name", f"guest={machine.folder.name}", "-nodefaults", "-no-user-config", "-display", "none"),
        *("-machine", "q35", "-cpu", "max,-svm,-la57", "-accel", "tcg,thread=multi,tb-size=256"),
        *("-smp", "1", "-m", str(machine.memory_mb)),
        *("-kernel", str(image.kernel), "-initrd", str(image.initramfs), "-append", KERNEL_ARGUMENTS),
        *("-serial", f"file:{machine.console}", "-serial", f"unix:{machine.port},server=on,wait=off"),
        *("-qmp", f"unix:{machine.monitor},server=on,wait=off"),
        # The disk is thrown away, so nothing needs to reach that of this machine.
        *("-drive", f"if=none,id=disk,file={machine.disk},format=qcow2,cache=unsafe,discard=unmap"),
        *("-device", "virtio-blk-pci,drive=disk", "-device", "virtio-rng-pci"),
        *("-netdev", f"tap,id=net,ifname={machine.tap},script=no,downscript=no"),
        *("-device", f"virtio-net-pci,netdev=net,mac={machine.mac}"),
        *("-fsdev", f"local,id=share,path={machine.share},security_model=none,readonly=on"),
        *("-device", "virtio-9p-pci,fsdev=share,mount_tag=share"),
        *(("-incoming", f"exec:zstd -dc {shlex.quote(str(image.memory))}") if frozen else ()),
    ]


def render_disk(disk: Path, backing: Path) -> list[str]:
    """Return the command that creates a disk whose content is that of another one until it is written to."""
    return ["qemu-img", "create", "-q", "-f", "qcow2", "-b", str(backing), "-F", "qcow2", str(disk)]


class Monitor:
    """QEMU's monitor of one machine."""

    def __init__(self, path: Path) -> None:
        self._socket = _connect(path)
        self._lines = self._socket.makefile("r")
        self._lines.readline()
        self.ask("qmp_capabilities")

    def ask(self, command: str, **arguments: object) -> Any:
        """Return the answer to a command; raise SetupError with QEMU's words if it fails."""
        self._socket.sendall(json.dumps({"execute": command, "arguments": arguments}).encode() + b"\n")
        while line := self._lines.readline():
            answer = json.loads(line)
            if "error" in answer:
                raise SetupError(f"QEMU's {command} failed: {answer['error'].get('desc', answer['error'])}")
            if "return" in answer:
                return answer["return"]
        raise SetupError(f"QEMU ended during {command}")

    def close(self) -> None:
        self._lines.close()
        self._socket.close()


def freeze(machine: Machine, memory: Path) -> None:
    """Stop a machine, write its memory to a file and end it; its disk belongs to that memory from now on."""
    monitor = Monitor(machine.monitor)
    try:
        monitor.ask("stop")
        monitor.ask("migrate-set-parameters", **{"max-bandwidth": 1 << 40})
        monitor.ask("migrate", uri=f"exec:zstd -q -1 -T1 >{shlex.quote(str(memory))}")
        deadline = time.monotonic() + FREEZE_TIMEOUT_S
        while (status := monitor.ask("query-migrate").get("status")) != "completed":
            if status in ("failed", "cancelled") or time.monotonic() > deadline:
                raise SetupError(f"the memory of the machine cannot be written to {memory}: {status}")
            time.sleep(POLL_S)
        monitor.ask("quit")
    finally:
        monitor.close()


def talk(port: Path, lines: Sequence[str], expected: str, timeout_s: float) -> str:
    """Send lines to a machine's serial port; return the rest of the line that begins with the expected word.

    Raise SetupError if the machine says that it failed; its console has the reason.
    """
    with _connect(port) as connection:
        connection.settimeout(timeout_s)
        connection.sendall("".join(f"{line}\n" for line in lines).encode())
        received = b""
        while (answer := find_answer(received, expected)) is None:
            if find_answer(received, FAILED) is not None:
                raise SetupError(f"{port.parent.name} failed before it said {expected!r}", port.parent / CONSOLE)
            try:
                chunk = connection.recv(4096)
            except TimeoutError:
                raise SetupError(f"{port.parent.name} did not say {expected!r} within {timeout_s:.0f} s") from None
            if not chunk:
                raise SetupError(f"{port.parent.name} ended before it said {expected!r}")
            received += chunk
        return answer


def find_answer(received: bytes, expected: str) -> str | None:
    """Return the rest of the first complete line that begins with a word, or None if there is none yet."""
    for line in received.decode(errors="replace").split("\n")[:-1]:
        word, _, answer = line.strip().partition(" ")
        if word == expected:
            return answer
    return None


def _connect(path: Path) -> socket.socket:
    """Connect to a socket of QEMU, which creates it soon after its start."""
    deadline = time.monotonic() + ANSWER_TIMEOUT_S
    while True:
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.connect(str(path))
        except OSError as error:
            connection.close()
            if time.monotonic() > deadline:
                raise SetupError(f"QEMU does not listen at {path}: {error}") from error
            time.sleep(POLL_S)
        else:
            return connection
