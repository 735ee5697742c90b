"""Everything of others that muster downloads in a pinned version, read from the files that pin it."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bootstrap.steps.cloud.slurm_packages import SOURCES
from cluster.catalog.interpreter import PYTHON
from cluster.catalog.software import components as software
from setup import pins

ROOT = Path(__file__).resolve().parent.parent
LOCKS = (
    "requirements.lock",
    "bootstrap/requirements.lock",
    "trainer/requirements.lock",
    "tests/trainer/requirements.lock",
)
GO_SUMS = (
    "setup/kubernetes/cluster/go.sum",
    "setup/kubernetes/jobset/go.sum",
    "setup/pulumi/cli/go.sum",
    "setup/pulumi/language-python/go.sum",
)
_PACKAGE = re.compile(r"(?m)^([A-Za-z0-9][\w.-]*)==([^\s;]+)((?:.*\\\n)*.*)")
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")
_MODULE = re.compile(r"(?m)^(\S+) (v\S+) h1:(\S+)$")


@dataclass(frozen=True, order=True)
class Component:
    """A package, a program or an image, and the checksums of the files that may be downloaded for it."""

    kind: str
    """Type in package URLs: pypi, golang, docker or generic."""
    name: str
    version: str
    pinned_in: tuple[str, ...]
    sha256: tuple[str, ...] = ()
    """Empty if no checksum is pinned."""


def list_components(root: Path = ROOT) -> list[Component]:
    """Return all components, each version once, sorted."""
    merged: dict[tuple[str, str, str], Component] = {}
    for component in _read_all(root):
        key = (component.kind, component.name, component.version)
        before = merged.get(key, component)
        merged[key] = Component(
            *key,
            pinned_in=tuple(sorted({*before.pinned_in, *component.pinned_in})),
            sha256=tuple(sorted({*before.sha256, *component.sha256})),
        )
    return sorted(merged.values())


def read_lock(text: str, name: str) -> Iterator[Component]:
    """Yield the packages of a lock file of pip."""
    for package, version, options in _PACKAGE.findall(text):
        yield Component("pypi", package.lower(), version, (name,), tuple(_HASH.findall(options)))


def read_go_sums(text: str, name: str) -> Iterator[Component]:
    """Yield the modules of a go.sum file; a module's checksum covers the list of its files and their checksums."""
    for module, version, checksum in _MODULE.findall(text):
        if not version.endswith("/go.mod"):
            yield Component("golang", module, version, (name,), (base64.b64decode(checksum).hex(),))


def _read_all(root: Path) -> Iterator[Component]:
    packages = [package for lock in LOCKS for package in read_lock((root / lock).read_text(), lock)]
    yield from packages
    for file in GO_SUMS:
        yield from read_go_sums((root / file).read_text(), file)
    yield from _list_programs(packages)


def _list_programs(packages: list[Component]) -> Iterator[Component]:
    here = "setup/pins.py"
    yield Component("generic", "pulumi", pins.PULUMI, (here,), tuple(sorted(pins.PULUMI_SHA256.values())))
    # The plugin of a provider has the version of the provider's package.
    for package in packages:
        if package.name.startswith("pulumi-"):
            plugin = package.name.replace("pulumi-", "pulumi-resource-")
            yield Component("generic", plugin, package.version, package.pinned_in)
    image, _, digest = pins.OFFICIAL_BASE.partition("@sha256:")
    yield Component("docker", image, f"sha256:{digest}", (here,), (digest,) if digest else ())
    sums = tuple(base64.b64decode(checksum.removeprefix("h1:")).hex() for checksum in pins.GO_SUMS.values())
    yield Component("golang", "golang.org/toolchain", f"v0.0.1-go{pins.GO}", (here,), sums)
    for source in SOURCES.values():
        yield Component(
            "generic", "slurm", source.version, ("bootstrap/steps/cloud/slurm_packages.py",), (source.sha256,)
        )
    archives = tuple(sorted(archive.sha256 for archive in PYTHON.archives.values()))
    yield Component("generic", "cpython", PYTHON.version, ("cluster/catalog/interpreter.py",), archives)
    for name, entry in software().items():
        if entry.install:
            table = "cluster/catalog/data/software.yaml"
            yield Component("generic", name.replace("_", "-"), entry.version, (table,), (entry.install.sha256,))
