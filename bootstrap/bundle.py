"""Bundles: archives of our code that nodes run, named by a digest of their content.

The shared bundle (trainer, job scripts) is unpacked on the shared filesystem. The node bundle is what a machine that
sets itself up downloads: the code, wheels, and the cluster's spec and inventory. The same files give the same bytes.
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from pathlib import Path

SHARED_FOLDERS = ("trainer", "simulator/calibrate", "slurm/jobs", "slurm/fabric", "slurm/rdma")
NODE_FOLDERS = ("bootstrap", "cluster", "slurm", "trainer", "simulator/calibrate")
# Scripts of the repository that people run on the nodes, by their path in the shared bundle.
SHARED_SCRIPTS = {"bin/muster-env": "bootstrap/scripts/muster-env"}

# Files of one cluster in a node bundle.
DESCRIPTION = "description"
SPEC = f"{DESCRIPTION}/spec.json"
INVENTORY = f"{DESCRIPTION}/inventory.json"
CLOUD = f"{DESCRIPTION}/cloud.json"
PUBLIC_KEY = f"{DESCRIPTION}/ssh_public_key"
SLURM_KEY_DIGEST = f"{DESCRIPTION}/slurm_key.sha256"
"""Changes with the key, so that machines apply the bundle, and with it the key, again."""
IMAGE = f"{DESCRIPTION}/image.json"
"""In the bundle that builds an image, in place of the files of a cluster."""

# Link to the node bundle in use. Set-up points it to a new bundle; running programs keep the files they started with.
INSTALLED = "/opt/muster/current"
INSTALLED_PYTHON = f"{INSTALLED}/venv/bin/python"


@dataclass(frozen=True)
class Bundle:
    """A tar archive and the short digest that names it."""

    digest: str
    archive: bytes = field(repr=False)

    @cached_property
    def sha256(self) -> str:
        return sha256(self.archive).hexdigest()


def pack_shared(root: Path, environment: str) -> Bundle:
    """Pack the files for the shared filesystem, with a link `env` to the training environment."""
    return _pack(root, _list_files(root, SHARED_FOLDERS), {}, {"env": environment}, SHARED_SCRIPTS)


def pack_node(
    root: Path, wheels: Path, cluster_files: Mapping[str, bytes], target_folders: Sequence[str] = ()
) -> Bundle:
    """Pack our code, the target's own node code, the wheels and the files of one cluster.

    `cluster_files` have the names above, plus `software.training_lock` if it is not a file of the repository.
    """
    content = {f"wheels/{wheel.name}": wheel.read_bytes() for wheel in sorted(wheels.glob("*.whl"))}
    return _pack(root, _list_files(root, (*NODE_FOLDERS, *target_folders)), content | dict(cluster_files))


def _pack(
    root: Path,
    paths: Iterable[Path],
    content: Mapping[str, bytes],
    links: Mapping[str, str] | None = None,
    renamed: Mapping[str, str] | None = None,
) -> Bundle:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for path in paths:
            tar.addfile(_entry(path, str(path.relative_to(root))), io.BytesIO(path.read_bytes()))
        for name, source in sorted((renamed or {}).items()):
            tar.addfile(_entry(root / source, name), io.BytesIO((root / source).read_bytes()))
        for name, data in sorted(content.items()):
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
        for name, target in sorted((links or {}).items()):
            link = tarfile.TarInfo(name)
            link.type, link.linkname = tarfile.SYMTYPE, target
            tar.addfile(link)
    data = buffer.getvalue()
    return Bundle(sha256(data).hexdigest()[:16], data)


def _list_files(root: Path, folders: Iterable[str]) -> Iterator[Path]:
    for folder in folders:
        for path in sorted((root / folder).rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                yield path


def _entry(path: Path, name: str) -> tarfile.TarInfo:
    """Return an archive entry without times, owners and umask, which would make the digest depend on the machine."""
    entry = tarfile.TarInfo(name)
    stat = path.stat()
    entry.size = stat.st_size
    entry.mode = 0o755 if stat.st_mode & 0o100 else 0o644
    return entry
