"""Virtual machines that a test starts: frozen copies that go on within seconds, with a name and an address each."""

from __future__ import annotations

import base64
import fcntl
import os
import secrets
import shlex
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from infra.resources import ssh_key
from setup import emulator, virtual_machines
from setup.emulator import Image, Machine, Monitor
from setup.paths import Paths
from setup.virtual_machines import MEMORY_MB
from tests.harness import QUICK_KEYS, wait_until
from tests.virtual_machines.network import Network, open_network

USER = "ops"
SSH_PORT, ACCESS_PORT = 22, 2222
# The processor is emulated, and others may use this machine.
THAW_TIMEOUT_S, BOOT_TIMEOUT_S, COMMAND_TIMEOUT_S = 180.0, 400.0, 900.0
# A probe that gives up early keeps a slow machine busy with the ones before.
PROBE_TIMEOUT_S = 20.0
_READING = "inmigrate"
"""QEMU's status of a machine whose memory is being read."""
_PREFIX, _LOCK, _CREATION_S = "muster-vm-", "lock", 60.0


@dataclass(frozen=True)
class VirtualMachine:
    """A running machine."""

    name: str
    address: str
    fingerprint: str
    machine: Machine
    image: Image
    network: Network
    identity: Path
    """Private key of user `ops`, and of root at the port for tests."""

    def run(self, script: str, *, check: bool = True, timeout: float = COMMAND_TIMEOUT_S) -> str:
        """Run a script as root, past the machine's own sshd, and return what it prints."""
        done = subprocess.run(
            [*self._ssh(), "bash", "-s"], input=script, text=True, capture_output=True, timeout=timeout, check=False
        )
        if check and done.returncode != 0:
            raise AssertionError(f"on {self.name}: {script}\nexited {done.returncode}\n{done.stdout}\n{done.stderr}")
        return done.stdout.strip()

    def start(self, script: str) -> subprocess.Popen[str]:
        """Start a script as root, and return while it runs."""
        command = [*self._ssh(), f"bash -c {shlex.quote(script)}"]
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    def pause(self) -> None:
        """Let the machine stand still, as one whose kernel hangs."""
        os.kill(self._find_process(), signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self._find_process(), signal.SIGCONT)

    def cut_power(self) -> None:
        """End the machine as a power failure does."""
        process = self._find_process()
        os.kill(process, signal.SIGKILL)
        self.disconnect()
        arguments = Path(f"/proc/{process}/cmdline")
        # Nobody reads the exit code of a process in the namespace, so that it stays, without arguments.
        wait_until(lambda: not arguments.exists() or not arguments.read_bytes(), f"{self.name} is off", 30)

    def boot(self) -> None:
        """Start a machine that is off, and wait until it can be logged in to."""
        for path in (self.machine.port, self.machine.monitor):
            path.unlink(missing_ok=True)
        launch(self.machine, self.image, self.network, frozen=False)
        self.await_login(BOOT_TIMEOUT_S)

    def await_login(self, timeout_s: float) -> None:
        wait_until(lambda: answers(self.address, ACCESS_PORT), f"tests can log in to {self.name}", timeout_s)
        wait_until(lambda: answers(self.address, SSH_PORT), f"{self.name} has an sshd", timeout_s)

    def disconnect(self) -> None:
        """End the connection that all scripts share."""
        if self._control.exists():
            command = ["ssh", "-o", f"ControlPath={self._control}", "-O", "exit", self.name]
            subprocess.run(command, check=False, capture_output=True)

    def _ssh(self) -> list[str]:
        trusting = ("-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "-o", "LogLevel=ERROR")
        # A new connection takes an emulated processor seconds.
        shared = ("-o", "ControlMaster=auto", "-o", f"ControlPath={self._control}", "-o", "ControlPersist=600")
        where = ("-i", str(self.identity), "-p", str(ACCESS_PORT), "-o", "ConnectTimeout=60", f"root@{self.address}")
        return ["ssh", *trusting, *shared, *QUICK_KEYS, *where]

    @property
    def _control(self) -> Path:
        return self.machine.folder / "control"

    def _find_process(self) -> int:
        return find_emulator(self.machine)


def thaw(machine: Machine) -> None:
    """Wait until the memory of a frozen machine is read, and let it go on."""
    monitor = Monitor(machine.monitor)
    try:
        wait_until(
            lambda: monitor.ask("query-status")["status"] != _READING,
            f"the memory of {machine.folder.name} is read",
            emulator.ANSWER_TIMEOUT_S,
        )
        monitor.ask("cont")
    finally:
        monitor.close()


def find_emulator(machine: Machine) -> int:
    """Return the id of the process of a machine, which has its disk among its arguments."""
    for folder in Path("/proc").iterdir():
        try:
            arguments = (folder / "cmdline").read_bytes() if folder.name.isdigit() else b""
        except OSError:
            continue
        if arguments.startswith(emulator.PROGRAM.encode()) and f"file={machine.disk},".encode() in arguments:
            return int(folder.name)
    raise ProcessLookupError(f"{machine.folder.name} does not run")


def explain_lack(paths: Paths) -> str:
    """Return why no virtual machine can be started here; empty if one can."""
    if lack := emulator.explain_lack():
        return lack
    if os.geteuid() != 0:
        return "only root can create the network of the virtual machines"
    if virtual_machines.list_lacking_packages() or not virtual_machines.locate(paths).is_dir():
        return "the virtual machine is not built: run `python3 -m setup virtual-machines`"
    return ""


@contextmanager
def open_virtual_machines(
    names: Sequence[str], identity: Path, share: Path | None = None
) -> Iterator[dict[str, VirtualMachine]]:
    """Start machines whose user `ops` a new key can log in as; write the key to a file. Remove them at the end.

    They can mount a folder of this machine read-only, by 9p with the tag `share`.
    """
    key = ssh_key.generate("me")
    identity.write_text(key.private)
    identity.chmod(0o600)
    image = Image(virtual_machines.locate(Paths.from_environment()))
    with ExitStack() as opened:
        folder = opened.enter_context(open_folder())
        network = opened.enter_context(open_network())
        started = [create(folder / name, image, number, share or folder) for number, name in enumerate(names, 1)]
        for machine in started:
            launch(machine, image, network, frozen=True)
        machines = {}
        for number, (name, machine) in enumerate(zip(names, started, strict=True), 1):
            thaw(machine)
            address = network.address(number)
            lines = render_identity(name, str(address), machine.mac, key.public)
            fingerprint = emulator.talk(machine.port, lines, "done", THAW_TIMEOUT_S)
            machines[name] = VirtualMachine(name, str(address.ip), fingerprint, machine, image, network, identity)
        for each in machines.values():
            each.await_login(THAW_TIMEOUT_S)
        for each in machines.values():
            opened.callback(each.disconnect)
        yield machines


@contextmanager
def open_folder(parent: Path = Path("/tmp")) -> Iterator[Path]:
    """Create a folder for machines, and remove those that killed tests have left; paths of sockets must be short."""
    for folder in parent.glob(f"{_PREFIX}*"):
        if not is_locked(folder):
            shutil.rmtree(folder, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=_PREFIX, dir=parent) as name, (Path(name) / _LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield Path(name)


def is_locked(folder: Path) -> bool:
    """Return whether the process that created a folder of machines still runs."""
    try:
        with (folder / _LOCK).open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        # It may be about to create the lock.
        return time.time() - folder.stat().st_mtime < _CREATION_S
    return False


def create(folder: Path, image: Image, number: int, share: Path) -> Machine:
    """Create the disk of a machine, a copy of the frozen one's that takes no space."""
    machine = Machine(folder, f"52:54:00:4d:56:{number:02x}", f"tap-{number}", MEMORY_MB, share)
    folder.mkdir()
    subprocess.run(emulator.render_disk(machine.disk, image.disk), check=True)
    return machine


def render_identity(name: str, address: str, mac: str, keys: str) -> tuple[str, str]:
    """Return the lines that a copy reads: who it is, and whom it lets in."""
    line = f"{name} {address} {mac} {time.time():.0f} {secrets.token_hex(32)}"
    return line, base64.b64encode(f"{keys}\n".encode()).decode()


def launch(machine: Machine, image: Image, network: Network, *, frozen: bool) -> None:
    """Start the process of a machine in the network."""
    # In the background: nsenter would stop together with a machine that stands still, and stay when all others end.
    script = f"""ip link show {machine.tap} >/dev/null 2>&1 || ip tuntap add {machine.tap} mode tap
ip link set {machine.tap} master bridge up
setsid "$@" &"""
    command = emulator.render_command(machine, image, frozen=frozen)
    with (machine.folder / "emulator.log").open("ab") as log:
        subprocess.run(
            network.enter("sh", "-ec", script, "sh", *command),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            check=True,
        )


def answers(address: str, port: int) -> bool:
    """Return whether an sshd greets at an address."""
    try:
        with socket.create_connection((address, port), PROBE_TIMEOUT_S) as connection:
            connection.settimeout(PROBE_TIMEOUT_S)
            return connection.recv(8).startswith(b"SSH-")
    except OSError:
        return False
