"""Write schemas/: the parts of Kubernetes' and JobSet's published schemas that describe objects of a training job.

    python -m tests.k8s.shorten_schemas SWAGGER JOBSET_CRD

SWAGGER is api/openapi-spec/swagger.json of the Go module k8s.io/kubernetes, and JOBSET_CRD is
config/components/crd/bases/jobset.x-k8s.io_jobsets.yaml of sigs.k8s.io/jobset, both in the versions of the file names
below (Apache-2.0). Descriptions are left out, and the Job in a JobSet refers to that of Kubernetes.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

SCHEMAS = Path(__file__).parent / "schemas"
KUBERNETES = SCHEMAS / "kubernetes-1.36.0.json"
JOBSET = SCHEMAS / "jobset-0.12.0.json"
_KEYWORDS = frozenset(
    {"type", "format", "properties", "required", "items", "additionalProperties", "enum", "$ref", "minimum", "maximum"}
    | {"pattern", "minLength", "maxLength", "x-kubernetes-int-or-string"}
)
_KIND = "x-kubernetes-group-version-kind"
ROOTS = {
    *("io.k8s.api.batch.v1.Job", "io.k8s.api.batch.v1.JobTemplateSpec", "io.k8s.api.apps.v1.Deployment"),
    *("io.k8s.api.core.v1.Service", "io.k8s.api.core.v1.ConfigMap", "io.k8s.api.core.v1.PersistentVolumeClaim"),
    "io.k8s.api.networking.v1.NetworkPolicy",
}
PREFIX = "#/definitions/"


def shorten(schema: Any) -> Any:
    """Return a schema without its texts and extensions."""
    if isinstance(schema, list):
        return [shorten(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    short = {key: shorten(value) for key, value in schema.items() if key in _KEYWORDS and key != "properties"}
    if _KIND in schema:
        short[_KIND] = schema[_KIND]
    if "properties" in schema:
        short["properties"] = {name: shorten(value) for name, value in schema["properties"].items()}
    return short


def list_references(schema: Any) -> Iterator[str]:
    """Yield the names of the definitions that a schema refers to."""
    if isinstance(schema, dict):
        if "$ref" in schema:
            yield schema["$ref"].removeprefix(PREFIX)
        for value in schema.values():
            yield from list_references(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from list_references(value)


def select_definitions(swagger: dict[str, Any]) -> dict[str, Any]:
    """Return the definitions of ROOTS and all that they refer to."""
    selected: dict[str, Any] = {}
    pending = sorted(ROOTS)
    while pending:
        name = pending.pop()
        if name not in selected:
            selected[name] = shorten(swagger["definitions"][name])
            pending += list_references(selected[name])
    return dict(sorted(selected.items()))


def select_jobset(crd: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a JobSet without its status, with Kubernetes' own Job inside."""
    (version,) = [version for version in crd["spec"]["versions"] if version["name"] == "v1alpha2"]
    properties = version["schema"]["openAPIV3Schema"]["properties"]
    spec = shorten(properties["spec"])
    spec["properties"]["replicatedJobs"]["items"]["properties"]["template"] = {
        "$ref": f"{PREFIX}io.k8s.api.batch.v1.JobTemplateSpec"
    }
    spec["properties"].pop("volumeClaimPolicies", None)
    metadata = {"$ref": f"{PREFIX}io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"}
    strings = {name: {"type": "string"} for name in ("apiVersion", "kind")}
    return {"type": "object", "required": ["spec"], "properties": {**strings, "metadata": metadata, "spec": spec}}


def main(swagger: Path, crd: Path) -> None:
    """Write both files."""
    definitions = select_definitions(json.loads(swagger.read_text()))
    KUBERNETES.write_text(json.dumps({"definitions": definitions}, separators=(",", ":")) + "\n")
    JOBSET.write_text(json.dumps(select_jobset(yaml.safe_load(crd.read_text())), separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
