"""What makes a container of the node image pass for AWS's images: Ubuntu 22.04, its kernel, and packages to install.

The kernel of the plain image is newer than those with a Lustre client, so its machines restart with an older one. The
image with the GPU driver has a kernel with a client.
"""

from __future__ import annotations

from pathlib import Path

from bootstrap.lustre_kernels import CLIENT, IMAGE
from infra.targets.aws.rehearse.file import File

PLAIN_KERNEL, GPU_KERNEL = "6.8.0-1045-aws", "6.8.0-1044-aws"
"""Kernels of the images without and with a GPU driver."""
CLIENT_KERNELS = ("6.8.0-1043-aws", GPU_KERNEL)
"""Kernels in Ubuntu's archive that have a Lustre client."""
FILES = Path(__file__).parent / "machine_files"
HOME = "usr/lib/rehearsal"
"""Folder of the stand-ins on a machine."""
_PROGRAM = 0o755
_RELEASE = 'ID=ubuntu\nID_LIKE=debian\nVERSION_ID="22.04"\nVERSION_CODENAME=jammy\nPRETTY_NAME="Ubuntu 22.04 LTS"\n'
_PACKAGES, _LUSTRE = f"{HOME}/packages", f"{HOME}/lustre-repository"
_NOTE = File("A stand-in of a rehearsal.\n")
_DO_NOTHING = File("#!/bin/sh\nexit 0\n", _PROGRAM)
# lnet and the modules below it are Lustre's network; kefalnd is the part for EFA.
_MODULES = ("lustre", "lnet", "ksocklnd", "kefalnd")


def list_image_files(*, has_gpus: bool) -> dict[str, File]:
    """Return, by path without the leading slash, the release, the kernel and the package tools of an image."""
    return {
        "etc/os-release": File(_RELEASE),
        f"{HOME}/kernel": File(f"{GPU_KERNEL if has_gpus else PLAIN_KERNEL}\n"),
        "usr/local/sbin/apt-get": read_program("apt-get.sh"),
        "usr/local/bin/apt-cache": read_program("apt-cache.sh"),
        "usr/local/bin/uname": read_program("uname.sh"),
        "usr/local/bin/gpg": read_program("gpg.sh"),
        "usr/local/bin/sha256sum": read_program("sha256sum.sh"),
        "usr/local/sbin/modprobe": read_program("modprobe.sh"),
        "usr/local/sbin/update-grub": read_program("update-grub.sh"),
        **_list_packages(),
        **_list_lustre_repository(),
    }


def read_program(name: str) -> File:
    """Return an executable file of machine_files."""
    return File((FILES / name).read_text(encoding="utf-8"), _PROGRAM)


def _list_packages() -> dict[str, File]:
    """Return the packages of Ubuntu's archive that machines install and the node image does not have."""
    files = {
        "nfs-common/usr/sbin/mount.nfs4": read_program("mount-nfs4.sh"),
        "stunnel4/usr/bin/stunnel": read_program("stunnel.py"),
        # Images get the tools for local disks, which no machine of a rehearsal has.
        **{f"{name}/usr/share/doc/{name}/README": _NOTE for name in ("mdadm", "xfsprogs")},
        # Slurm is built with these; nothing else is compiled in a rehearsal.
        "devscripts/usr/bin/debuild": read_program("debuild.sh"),
        "equivs/usr/bin/mk-build-deps": _DO_NOTHING,
        **{f"{name}/usr/share/doc/{name}/README": _NOTE for name in ("g++", "build-essential", "fakeroot")},
    }
    return {f"{_PACKAGES}/{path}": file for path, file in files.items()}


def _list_lustre_repository() -> dict[str, File]:
    """Return the packages of AWS's repository of Lustre clients, and of the kernels that they need."""
    files: dict[str, File] = {}
    for kernel in CLIENT_KERNELS:
        files[f"{IMAGE}{kernel}/boot/vmlinuz-{kernel}"] = _NOTE
        files[f"linux-headers-{kernel}/usr/src/linux-headers-{kernel}/README"] = _NOTE
        client = f"{CLIENT}{kernel}"
        files |= {f"{client}/usr/lib/modules/{kernel}/updates/{module}.ko": _NOTE for module in _MODULES}
        files[f"{client}/usr/sbin/mount.lustre"] = read_program("mount-lustre.sh")
        files |= {f"{client}/usr/{path}": _DO_NOTHING for path in ("sbin/lctl", "sbin/lnetctl", "bin/lfs")}
    return {f"{_LUSTRE}/{path}": file for path, file in files.items()}
