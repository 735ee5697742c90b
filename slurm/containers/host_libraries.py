"""What a container gets of its node: libraries of the GPU driver, which must match the kernel's, and of the fabric."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

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


@dataclass
class HostParts:
    """Mounts (place in the container: path on the node) and folders for search paths."""

    mounts: dict[str, str] = field(default_factory=dict)
    libraries: list[str] = field(default_factory=list)
    programs: list[str] = field(default_factory=list)


def choose_parts(image: Path, cache: Mapping[str, str], node: Path = Path("/")) -> HostParts:
    """Return what a container gets; `cache` is the node's index of libraries. An image's own fabric libraries win."""
    parts = HostParts()
    if (node / "dev/nvidiactl").exists():
        _add_libraries(parts, cache, _DRIVER)
        for name in _DRIVER_PROGRAMS:
            if (node / "usr/bin" / name).exists():
                parts.mounts[f"{PROGRAMS}/{name}"] = f"/usr/bin/{name}"
                parts.programs = [PROGRAMS]
    if (node / "dev/infiniband").exists() and not _has_library(image, "libibverbs.so.1"):
        _add_libraries(parts, cache, _VERBS)
        if verbs := cache.get("libibverbs.so.1"):
            for driver in sorted((Path(verbs).parent / "libibverbs").glob("*.so")):
                if _VERBS_DRIVER.fullmatch(driver.name):
                    parts.mounts[f"{LIBRARIES}/{driver.name}"] = str(driver)
        if (node / _VERBS_SETTINGS[1:]).is_dir():
            parts.mounts[_VERBS_SETTINGS] = _VERBS_SETTINGS
    for folder, inside in _EFA.items():
        if (node / folder[1:]).is_dir() and not (image / folder[1:]).exists():
            parts.mounts[folder] = folder
            parts.libraries += [f"{folder}/{name}" for name in inside if (node / folder[1:] / name).is_dir()]
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


def _has_library(image: Path, name: str) -> bool:
    folders = (
        "usr/lib",
        "usr/lib64",
        "lib",
        "lib64",
        "usr/local/lib",
        "usr/lib/x86_64-linux-gnu",
        "usr/lib/aarch64-linux-gnu",
    )
    return any((image / folder / name).exists() for folder in folders)
