"""The software bill of materials: every pinned component with its checksums, as CycloneDX 1.6 in JSON."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from datetime import datetime

from cyclonedx.model import HashAlgorithm, HashType, Property
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component as Part
from cyclonedx.model.component import ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

from release.components import Component

_TYPES = {"docker": ComponentType.CONTAINER, "generic": ComponentType.APPLICATION}


def render_sbom(version: str, commit: str, created: datetime, components: Iterable[Component]) -> str:
    """Return the document for a release; the same release always gives the same text."""
    root = Part(
        name="muster",
        version=version,
        type=ComponentType.APPLICATION,
        bom_ref=f"muster@{version}",
        purl=PackageURL("generic", None, "muster", version),
        properties=[Property(name="muster:commit", value=commit)],
    )
    # Named after the commit, because a random number would differ in each run.
    bom = Bom(serial_number=uuid.uuid5(uuid.NAMESPACE_URL, f"muster:{version}:{commit}"))
    bom.metadata.component = root
    bom.metadata.timestamp = created
    parts = [_describe(component) for component in components]
    bom.components.update(parts)
    bom.register_dependency(root, parts)
    return JsonV1Dot6(bom).output_as_string(indent=2) + "\n"


def _describe(component: Component) -> Part:
    namespace, _, name = component.name.rpartition("/")
    purl = PackageURL(component.kind, namespace or None, name, component.version)
    # The checksum of a Go module is the SHA-256 of a list, not of a file, so it is no `hash` of the document.
    is_file = component.kind != "golang"
    sums = [] if is_file else [Property(name="muster:go-sum-sha256", value=value) for value in component.sha256]
    return Part(
        name=component.name,
        version=component.version,
        type=_TYPES.get(component.kind, ComponentType.LIBRARY),
        bom_ref=purl.to_string(),
        purl=purl,
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=value) for value in component.sha256] if is_file else [],
        properties=[*(Property(name="muster:pinned-in", value=file) for file in component.pinned_in), *sums],
    )
