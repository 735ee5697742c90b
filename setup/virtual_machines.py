"""The disk and the frozen memory of a virtual machine, for tests that need machines with kernels of their own.

The machine is a minimal Debian with sshd, sudo and Python. Most packages that bootstrap needs are installed, with
their daemons stopped; the others are in a repository on its disk. It is started once, and frozen when it has booted;
tests start copies of it within seconds.
"""

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

from setup import emulator, image, pins
from setup.apt import install_packages
from setup.emulator import Image, Machine
from setup.paths import Paths, exclusive_lock, scratch_directory
from setup.run import SetupError, ask, run

# Commands of this machine, and the packages that have them.
PROVIDERS = {
    "qemu-system-x86_64": "qemu-system-x86",
    "qemu-img": "qemu-utils",
    "debootstrap": "debootstrap",
    "mke2fs": "e2fsprogs",
    "zstd": "zstd",
    "xz": "xz-utils",
    "ip": "iproute2",
}
# What a machine has when its owner gets it.
DELIVERED = (
    *("systemd-sysv", "dbus", "libpam-systemd", "udev", "kmod", "linux-image-amd64", "openssh-server", "sudo"),
    *("python3", "iproute2", "iputils-ping", "procps", "ca-certificates", "busybox-static", "cpio", "xz-utils"),
)
# What bootstrap would install, but it takes an emulated processor 5 to 10 minutes.
PREPARED = (
    *("slurm-client", "slurmd", "slurmctld", "slurmdbd", "slurm-wlm-mysql-plugin", "mariadb-server", "sackd"),
    *("nftables", "python3-venv", "nfs-kernel-server", "nfs-common", "rdma-core", "ibverbs-providers"),
    *("ibverbs-utils", "infiniband-diags"),
)
# What bootstrap installs.
OFFERED = ("libpam-slurm-adopt", "crun", "perftest", "chrony")
MEMORY_MB = 1536
DISK_GB = 40
INODES = 600_000
BOOT_TIMEOUT_S = 600.0
FROZEN_MAC = "52:54:00:00:00:00"
_MAGIC = {b"\xfd7zXZ": "xz", b"\x28\xb5\x2f\xfd": "zstd", b"\x1f\x8b": "gzip"}


def locate(paths: Paths) -> Path:
    """Return the folder of the cache with the files of the machine."""
    return paths.cache / "virtual-machines" / f"{pins.SUITE}-{_digest(paths)}"


def list_lacking_packages() -> list[str]:
    """Return the packages of the commands that are not installed here."""
    return sorted({package for command, package in PROVIDERS.items() if shutil.which(command) is None})


def install(paths: Paths, log: Path) -> None:
    """Install QEMU, and build and freeze the machine, unless it is in the cache; remove those of other versions."""
    target = locate(paths)
    with exclusive_lock(paths.cache / "virtual-machines.lock", lambda text: print(f"virtual-machines: {text}")):
        lacking = list_lacking_packages()
        if target.is_dir() and not lacking:
            return
        if lack := emulator.explain_lack():
            raise SetupError(lack)
        if os.geteuid() != 0:
            raise SetupError("only root can build the virtual machine, and run the tests: use `sudo`")
        if lacking:
            if shutil.which("apt-get") is None:
                raise SetupError(f"setup can install these programs on Debian and Ubuntu only: {', '.join(lacking)}")
            install_packages(lacking, log)
        if target.is_dir():
            return
        with scratch_directory(paths, "virtual-machines") as scratch:
            staging = scratch / "staging"
            staging.mkdir()
            _build(paths, scratch / "root", Image(staging), log)
            _freeze(scratch, Image(staging), log)
            shutil.rmtree(target.parent, ignore_errors=True)
            target.parent.mkdir(parents=True)
            staging.rename(target)


def _build(paths: Paths, root: Path, built: Image, log: Path) -> None:
    """Create the root filesystem, and from it the disk, the kernel and the initramfs."""
    sources = paths.root / "setup" / "virtual-machines"
    image.create_debian(root, log)
    for name in ("packages.sh", "slim.sh", "initramfs.sh", "init", "modules.txt"):
        shutil.copy(sources / name, root / name)
    shutil.copytree(sources / "rootfs", root, dirs_exist_ok=True)
    lists = (f"INSTALLED={' '.join((*DELIVERED, *PREPARED))}", f"OFFERED={' '.join(OFFERED)}")
    _run_inside(root, ["env", *lists, "/packages.sh"], log)
    kernel = next((root / "usr/lib/modules").iterdir()).name
    _offer_packages(root, log)
    _run_inside(root, ["/slim.sh", kernel], log)
    _run_inside(root, ["/initramfs.sh", kernel], log)
    for name in ("packages.sh", "slim.sh", "initramfs.sh"):
        (root / name).unlink()
    (root / "boot/initramfs").rename(built.initramfs)
    built.kernel.write_bytes(extract_kernel((root / f"boot/vmlinuz-{kernel}").read_bytes()))
    # /boot is not read again.
    for path in (root / "boot").iterdir():
        path.unlink() if path.is_file() else shutil.rmtree(path)
    raw = built.folder / "disk.raw"
    with raw.open("wb") as file:
        file.truncate(DISK_GB << 30)
    options = "lazy_itable_init=1,lazy_journal_init=1"
    run(["mke2fs", "-q", "-t", "ext4", "-m", "0", "-N", str(INODES), "-E", options, "-d", root, raw], log)
    run(["qemu-img", "convert", "-O", "qcow2", raw, built.folder / "base.qcow2"], log)
    raw.unlink()


def _run_inside(root: Path, command: list[str], log: Path) -> None:
    """Run a command in the root filesystem; what it mounts disappears with it."""
    script = 'mount -t proc proc "$0/proc" && exec chroot "$0" "$@"'
    run(["unshare", "--mount", "sh", "-c", script, root, *command], log)


def _offer_packages(root: Path, log: Path) -> None:
    """Make the downloaded packages the only ones that the machine's apt knows."""
    folder = root / "opt/packages"
    packages = sorted(folder.glob("*.deb"))
    index = [describe_package(ask(["dpkg-deb", "--field", path]).out, path) for path in packages]
    (folder / "Packages").write_text("\n".join(index))
    for path in (root / "etc/apt").glob("sources.list*"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    sources = root / "etc/apt/sources.list.d/packages.sources"
    sources.parent.mkdir()
    sources.write_text("Types: deb\nURIs: file:/opt/packages\nSuites: ./\nTrusted: yes\nLanguages: none\n")
    (root / "etc/resolv.conf").unlink(missing_ok=True)
    (root / "etc/resolv.conf").touch()
    _run_inside(root, ["sh", "-c", "rm -rf /var/lib/apt/lists/*; apt-get -q update"], log)


def describe_package(control: str, path: Path) -> str:
    """Return the entry of a package in the index of a repository."""
    content = path.read_bytes()
    lines = (f"Filename: ./{path.name}", f"Size: {len(content)}", f"SHA256: {hashlib.sha256(content).hexdigest()}")
    return "\n".join((control.rstrip("\n"), *lines, ""))


def extract_kernel(packed: bytes) -> bytes:
    """Return the uncompressed kernel, which QEMU starts at once: an emulated processor takes a minute to unpack it.

    The offsets are those of the x86 boot protocol.
    """
    setup_sectors = packed[0x1F1]
    start = (setup_sectors + 1) * 512 + int.from_bytes(packed[0x248:0x24C], "little")
    payload = packed[start : start + int.from_bytes(packed[0x24C:0x250], "little")]
    program = next((program for magic, program in _MAGIC.items() if payload.startswith(magic)), None)
    if program is None:
        raise SetupError(f"the kernel is compressed in an unknown way: {payload[:6].hex()}")
    # The payload ends with its size, which these programs take for garbage.
    done = subprocess.run([program, "-dc"], input=payload, capture_output=True, check=False)
    if not done.stdout.startswith(b"\x7fELF"):
        raise SetupError(f"the kernel cannot be unpacked: {done.stderr.decode(errors='replace').strip()}")
    return done.stdout


def _freeze(scratch: Path, built: Image, log: Path) -> None:
    """Boot the machine and freeze it while it waits for a name."""
    folder = scratch / "frozen"
    machine = Machine(folder, FROZEN_MAC, "tap", MEMORY_MB, folder / "share")
    machine.share.mkdir(parents=True)
    run(emulator.render_disk(machine.disk, built.folder / "base.qcow2"), log)
    network = "ip tuntap add tap mode tap && ip link set tap up && exec"
    command = emulator.render_command(machine, built, frozen=False)
    process = subprocess.Popen(
        ["unshare", "--net", "sh", "-c", f'{network} "$@"', "sh", *command],
        stdin=subprocess.DEVNULL,
        process_group=0,
    )
    try:
        emulator.talk(machine.port, (), "ready", BOOT_TIMEOUT_S)
        emulator.freeze(machine, built.memory)
        process.wait(timeout=emulator.ANSWER_TIMEOUT_S)
    finally:
        process.kill()
        process.wait()
        with log.open("ab") as out:
            out.write(machine.console.read_bytes() if machine.console.exists() else b"")
    machine.disk.rename(built.disk)
    run(["qemu-img", "rebase", "-u", "-b", "base.qcow2", "-F", "qcow2", built.disk], log)


def _digest(paths: Paths) -> str:
    """Return a digest of everything that decides what is in the folder."""
    settings = (DELIVERED, PREPARED, OFFERED, DISK_GB)
    # A copy must have the devices of the frozen machine.
    nowhere = Path("machine")
    devices = emulator.render_command(
        Machine(nowhere, FROZEN_MAC, "tap", MEMORY_MB, nowhere), Image(nowhere), frozen=True
    )
    whole = hashlib.sha256(repr((settings, devices)).encode())
    for path in sorted((paths.root / "setup" / "virtual-machines").rglob("*")):
        if path.is_file():
            whole.update(f"\0{path.name}\0".encode() + path.read_bytes())
    return whole.hexdigest()[:12]
