"""The SBOM: a CycloneDX document that names every component with its checksums, and does not change by itself."""

from __future__ import annotations

import json
from datetime import UTC, datetime

from cyclonedx.model.bom import Bom

from release.components import Component, list_components
from release.sbom import render_sbom

CREATED = datetime(2026, 11, 17, tzinfo=UTC)
COMMIT = "c0ffee"
TOY = [
    Component("pypi", "six", "1.17.0", ("a.lock", "b.lock"), ("1" * 64, "2" * 64)),
    Component("golang", "example.com/a/b", "v1.2.3", ("go.sum",), ("3" * 64,)),
    Component("docker", "debian", f"sha256:{'4' * 64}", ("pins",), ("4" * 64,)),
]


def test_a_component_has_its_address_its_checksums_and_the_file_that_pins_it() -> None:
    document = json.loads(render_sbom("1.2.3", COMMIT, CREATED, TOY))
    assert (document["bomFormat"], document["specVersion"]) == ("CycloneDX", "1.6")
    parts = {part["name"]: part for part in document["components"]}
    assert {name: (part["purl"], part["type"]) for name, part in parts.items()} == {
        "six": ("pkg:pypi/six@1.17.0", "library"),
        "example.com/a/b": ("pkg:golang/example.com/a/b@v1.2.3", "library"),
        "debian": (f"pkg:docker/debian@sha256:{'4' * 64}", "container"),
    }
    assert sorted(entry["content"] for entry in parts["six"]["hashes"]) == ["1" * 64, "2" * 64]
    assert [entry["value"] for entry in parts["six"]["properties"]] == ["a.lock", "b.lock"]
    assert {"name": "muster:go-sum-sha256", "value": "3" * 64} in parts["example.com/a/b"]["properties"]
    assert "hashes" not in parts["example.com/a/b"]


def test_the_document_names_the_release_and_depends_on_all_components() -> None:
    document = json.loads(render_sbom("1.2.3", COMMIT, CREATED, TOY))
    root = document["metadata"]["component"]
    assert (root["name"], root["version"]) == ("muster", "1.2.3")
    assert root["properties"] == [{"name": "muster:commit", "value": COMMIT}]
    (edge,) = [entry for entry in document["dependencies"] if entry["ref"] == root["bom-ref"]]
    assert sorted(edge["dependsOn"]) == sorted(part["bom-ref"] for part in document["components"])


def test_the_same_release_gives_the_same_text_and_another_commit_another_number() -> None:
    text = render_sbom("1.2.3", COMMIT, CREATED, TOY)
    assert render_sbom("1.2.3", COMMIT, CREATED, reversed(TOY)) == text
    assert json.loads(render_sbom("1.2.3", "other", CREATED, TOY))["serialNumber"] != json.loads(text)["serialNumber"]


def test_the_library_reads_the_document_of_the_repository_back() -> None:
    components = list_components()
    document = json.loads(render_sbom("1.2.3", COMMIT, CREATED, components))
    read = Bom.from_json(document)  # type: ignore[attr-defined]  # a decorator of the library adds it
    assert {(part.name, part.version) for part in read.components} == {(part.name, part.version) for part in components}
    read.validate()
