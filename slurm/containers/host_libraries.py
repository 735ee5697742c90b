"""What a container gets of its node: libraries of the GPU driver, which must match the kernel's, and of the fabric.

The node's libraries are loaded with the image's C library. Those of the GPU driver are built for old ones; those of the
fabric are the distribution's, and stay outside if they need a newer one than the image has.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from slurm.containers.root_tree import resolve_in

HOST = "/run/muster-host"
LIBRARIES, PROGRAMS = f"{HOST}/lib", f"{HOST}/bin"
# Libraries of NVIDIA's driver for compute; they must have the version of the kernel module, so images do not have them.
_DRIVER = re.compile(r"lib(cuda|cudadebugger|nvidia-[a-z0-9-]+|nvoptix)\.so(\.\d+)*")
_DRIVER_PROGRAMS = ("nvidia-smi",)
# Verbs, which NCCL loads, with what they need; and their drivers, which they look for next to other libraries too.
_VERBS = re.compile(r"(libibverbs|librdmacm|libefa|libmlx5|libnl-3|libnl-route-3)\.so\.\d+")
_VERBS_DRIVER = re.compile(r"lib[a-z0-9_]+-rdmav\d+\.so")
_VERBS_SETTINGS = "/etc/libibverbs.d"
# AWS's own folders, whose libraries find each other there.
_EFA = {"/opt/amazon/efa": ("lib", "lib64"), "/opt/amazon/ofi-nccl": ("lib", "lib64")}
_GLIBC = "libc.so.6"
# A version of glibc's symbols, as each library lists those that it needs, and glibc those that it has.
_SYMBOL_VERSION = re.compile(rb"GLIBC_(\d+)\.(\d+)")


@dataclass
class HostParts:
    """Mounts (place in the container: path on the node) and folders for search paths."""

    mounts: dict[str, str] = field(default_factory=dict)
    libraries: list[str] = field(default_factory=list)
    programs: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    """Why it does not get something of the node."""


def choose_parts(image: Path, cache: Mapping[str, str], node: Path = Path("/")) -> HostParts:
    """Return what a container gets; `cache` is the node's index of libraries. An image's own fabric libraries win."""
    parts = HostParts()
    if (node / "dev/nvidiactl").exists():
        _add_libraries(parts, cache, _DRIVER)
        for name in _DRIVER_PROGRAMS:
            if (node / "usr/bin" / name).exists():
                parts.mounts[f"{PROGRAMS}/{name}"] = f"/usr/bin/{name}"
                parts.programs = [PROGRAMS]
    if (node / "dev/infiniband").exists() and _find_library(image, "libibverbs.so.1") is None:
        _add_verbs(parts, image, cache, node)
    for folder, inside in _EFA.items():
        if (node / folder[1:]).is_dir() and not (image / folder[1:]).exists():
            folders = [f"{folder}/{name}" for name in inside if (node / folder[1:] / name).is_dir()]
            files = [file for name in folders for file in (node / name[1:]).glob("*.so*")]
            if _fits(parts, folder, files, image):
                parts.mounts[folder] = folder
                parts.libraries += folders
    if any(place.startswith(f"{LIBRARIES}/") for place in parts.mounts):
        parts.libraries.insert(0, LIBRARIES)
    return parts


def parse_library_cache(text: str) -> dict[str, str]:
    """Return the path of each 64-bit library, as `ldconfig -p` lists them; the first of a name is the one in use."""
    paths: dict[str, str] = {}
    for name, kind, path in re.findall(r"^\s*(\S+) \(([^)]*)\) => (\S+)$", text, flags=re.MULTILINE):
        if "64" in kind:
            paths.setdefault(name, path)
    return paths


def _add_libraries(parts: HostParts, cache: Mapping[str, str], names: re.Pattern[str]) -> None:
    for name, path in sorted(cache.items()):
        if names.fullmatch(name):
            parts.mounts[f"{LIBRARIES}/{name}"] = path


def _add_verbs(parts: HostParts, image: Path, cache: Mapping[str, str], node: Path) -> None:
    verbs = HostParts()
    _add_libraries(verbs, cache, _VERBS)
    if library := cache.get("libibverbs.so.1"):
        for driver in sorted((node / library[1:]).parent.glob("libibverbs/*.so")):
            if _VERBS_DRIVER.fullmatch(driver.name):
                verbs.mounts[f"{LIBRARIES}/{driver.name}"] = f"/{driver.relative_to(node)}"
    if not _fits(parts, "RDMA verbs", [node / path[1:] for path in verbs.mounts.values()], image):
        return
    parts.mounts |= verbs.mounts
    if (node / _VERBS_SETTINGS[1:]).is_dir():
        parts.mounts[_VERBS_SETTINGS] = _VERBS_SETTINGS


def _fits(parts: HostParts, what: str, libraries: Iterable[Path], image: Path) -> bool:
    """Return whether the image's glibc has what these libraries need; add a warning if it does not."""
    own = _find_library(image, _GLIBC)
    has, needed = _read_newest_version(own), max(map(_read_newest_version, libraries), default=(0, 0))
    if needed <= has:
        return True
    owned = "has none" if own is None else f"has {has[0]}.{has[1]}"
    parts.warnings.append(
        f"{what} of the node needs glibc {needed[0]}.{needed[1]}, the image {owned}: the container does without, so "
        "messages between nodes use TCP; build the image on a newer base, or install these libraries in it"
    )
    return False


def _read_newest_version(library: Path | None) -> tuple[int, int]:
    try:
        content = b"" if library is None else library.read_bytes()
    except OSError:
        return (0, 0)
    return max(((int(major), int(minor)) for major, minor in _SYMBOL_VERSION.findall(content)), default=(0, 0))


def _find_library(image: Path, name: str) -> Path | None:
    """Return a library of the image, whose links must not lead out of it; None if it has none of this name."""
    folders = (
        "usr/lib",
        "usr/lib64",
        "lib",
        "lib64",
        "usr/local/lib",
        "usr/lib/x86_64-linux-gnu",
        "usr/lib/aarch64-linux-gnu",
        "lib/x86_64-linux-gnu",
        "lib/aarch64-linux-gnu",
    )
    paths = (image / resolve_in(image, f"{folder}/{name}")[1:] for folder in folders)
    return next((path for path in paths if path.is_file()), None)
