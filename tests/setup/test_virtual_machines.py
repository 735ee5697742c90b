"""The virtual machine for tests: built once, from what bootstrap needs, and refused where it cannot be built."""

from __future__ import annotations

import gzip
import os
import re
import shutil
from itertools import chain
from pathlib import Path

import pytest

from bootstrap.steps import nfs, packages
from setup import emulator, virtual_machines
from setup.paths import Paths
from setup.run import SetupError

REPO = Path(__file__).parents[2]
# The server of machines whose kernel has none.
GANESHA = set(nfs.PACKAGES["ganesha"])
explain_lack = emulator.explain_lack


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    folder = tmp_path / "root" / "setup" / "virtual-machines" / "rootfs"
    folder.mkdir(parents=True)
    (folder / "file").write_text("content")
    return Paths(root=tmp_path / "root", cache=tmp_path / "cache")


@pytest.fixture(autouse=True)
def able(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this machine be one on which virtual machines can be built."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(emulator, "explain_lack", lambda: "")


def test_a_machine_can_install_all_that_bootstrap_needs() -> None:
    needed = {*packages.COMMON, *chain(*packages.BY_ROLE.values()), *chain(*packages.BY_FABRIC.values())}
    needed |= {*chain(*nfs.PACKAGES.values()), *nfs.CLIENT_PACKAGES} - GANESHA
    assert needed - {*virtual_machines.DELIVERED, *virtual_machines.PREPARED, *virtual_machines.OFFERED} == set()


def test_other_content_has_another_place_in_the_cache(paths: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    places = [virtual_machines.locate(paths)]
    assert virtual_machines.locate(paths) == places[0]
    (paths.root / "setup/virtual-machines/rootfs/file").write_text("other")
    places.append(virtual_machines.locate(paths))
    monkeypatch.setattr(emulator, "KERNEL_ARGUMENTS", "quiet")
    places.append(virtual_machines.locate(paths))
    monkeypatch.setattr(virtual_machines, "OFFERED", ("slurmd",))
    places.append(virtual_machines.locate(paths))
    assert len(set(places)) == len(places)


def test_nothing_is_built_again(paths: Paths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    virtual_machines.locate(paths).mkdir(parents=True)
    monkeypatch.setattr(virtual_machines, "run", lambda *_args, **_options: pytest.fail("ran a program"))
    virtual_machines.install(paths, tmp_path / "log")


def test_another_architecture_and_other_users_are_refused(
    paths: Paths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(SetupError, match="only root can build the virtual machine"):
        virtual_machines.install(paths, tmp_path / "log")
    monkeypatch.setattr(emulator, "explain_lack", lambda: "no x86")
    with pytest.raises(SetupError, match="no x86"):
        virtual_machines.install(paths, tmp_path / "log")


def test_programs_that_cannot_be_installed_are_named(
    paths: Paths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lacking = {"qemu-img", "mke2fs", "apt-get"}
    monkeypatch.setattr(shutil, "which", lambda name: None if name in lacking else f"/usr/bin/{name}")
    with pytest.raises(SetupError, match="on Debian and Ubuntu only: e2fsprogs, qemu-utils"):
        virtual_machines.install(paths, tmp_path / "log")


def test_a_processor_of_another_kind_is_named() -> None:
    assert "aarch64" in explain_lack("aarch64")
    assert explain_lack("x86_64") == ""


def pack_kernel(payload: bytes) -> bytes:
    """Return an image as the x86 boot protocol describes it: four sectors of set-up, and the payload after them."""
    offset = 64
    header = bytearray(5 * 512)
    header[0x1F1] = 4
    header[0x248:0x24C] = offset.to_bytes(4, "little")
    header[0x24C:0x250] = len(payload).to_bytes(4, "little")
    return bytes(header) + bytes(offset) + payload + b"after it"


def test_the_kernel_is_unpacked() -> None:
    kernel = b"\x7fELF" + bytes(1000)
    size = len(kernel).to_bytes(4, "little")
    assert virtual_machines.extract_kernel(pack_kernel(gzip.compress(kernel) + size)) == kernel


def test_a_kernel_that_cannot_be_unpacked_is_an_error() -> None:
    with pytest.raises(SetupError, match="compressed in an unknown way: 02214c18"):
        virtual_machines.extract_kernel(pack_kernel(b"\x02\x21\x4c\x18"))
    with pytest.raises(SetupError, match="cannot be unpacked"):
        virtual_machines.extract_kernel(pack_kernel(gzip.compress(b"no kernel")))


def test_a_package_is_described_for_apt(tmp_path: Path) -> None:
    package = tmp_path / "small_1_all.deb"
    package.write_bytes(b"abc")
    assert virtual_machines.describe_package("Package: small\nVersion: 1\n", package) == (
        "Package: small\nVersion: 1\nFilename: ./small_1_all.deb\nSize: 3\n"
        "SHA256: ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad\n"
    )


def test_a_copy_has_the_devices_of_the_frozen_machine(tmp_path: Path) -> None:
    image = emulator.Image(tmp_path / "a cache")
    machine = emulator.Machine(tmp_path / "one", "52:54:00:00:00:01", "tap-1", 1024, tmp_path)
    cold, warm = (emulator.render_command(machine, image, frozen=frozen) for frozen in (False, True))
    assert warm == [*cold, "-incoming", f"exec:zstd -dc '{image.memory}'"]


@pytest.mark.parametrize(
    ("received", "answer"),
    [
        (b"", None),
        (b"ready", None),
        (b"ready\r\n", ""),
        (b"noise\ndone SHA256:abc\n", None),
        (b"noise\nready now then\nready later\n", "now then"),
    ],
)
def test_an_answer_counts_when_its_line_is_complete(received: bytes, answer: str | None) -> None:
    assert emulator.find_answer(received, "ready") == answer


def test_the_scripts_know_the_modules_that_are_kept() -> None:
    folder = REPO / "setup/virtual-machines"
    modules = (folder / "modules.txt").read_text().split()
    preloaded = (folder / "rootfs/usr/local/etc/test-machine/preload").read_text().split()
    (mounted,) = re.findall(r"--show-depends (virtio_pci .*) \|", (folder / "initramfs.sh").read_text())
    assert {*preloaded, *mounted.split()} - {*modules} == set()
