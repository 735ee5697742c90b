"""Check manifests against the published schemas, as strictly as `kubectl apply --validate=strict`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache
from typing import Any

from tests.k8s.shorten_schemas import JOBSET, KUBERNETES, PREFIX

_TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
}
_QUANTITY = "io.k8s.apimachinery.pkg.api.resource.Quantity"
_INT_OR_STRING = "io.k8s.apimachinery.pkg.util.intstr.IntOrString"


def check_manifest(manifest: dict[str, Any]) -> list[str]:
    """Return what is wrong with an object, as `path: problem`."""
    return list(_check(manifest, _find_schema(manifest), manifest.get("kind", "object")))


@cache
def _load_definitions() -> dict[str, Any]:
    definitions: dict[str, Any] = json.loads(KUBERNETES.read_text())["definitions"]
    return definitions


def _find_schema(manifest: dict[str, Any]) -> dict[str, Any]:
    group, _, version = manifest["apiVersion"].rpartition("/")
    kind = {"group": group, "version": version, "kind": manifest["kind"]}
    if kind == {"group": "jobset.x-k8s.io", "version": "v1alpha2", "kind": "JobSet"}:
        schema: dict[str, Any] = json.loads(JOBSET.read_text())
        return schema
    for definition in _load_definitions().values():
        if kind in definition.get("x-kubernetes-group-version-kind", ()):
            return dict(definition)
    raise KeyError(f"no schema of {kind}")


def _check(value: Any, schema: dict[str, Any], path: str) -> Iterator[str]:
    if "$ref" in schema:
        name = schema["$ref"].removeprefix(PREFIX)
        if name in (_QUANTITY, _INT_OR_STRING):
            if isinstance(value, bool) or not isinstance(value, (str, int)):
                yield f"{path}: {value!r} is neither a string nor a number"
            return
        schema = _load_definitions()[name]
    if schema.get("x-kubernetes-int-or-string"):
        return
    allowed = _TYPES.get(schema.get("type", ""), (object,))
    if not isinstance(value, allowed) or (isinstance(value, bool) and allowed == (int,)):
        yield f"{path}: {value!r} is not of type {schema['type']}"
        return
    if "enum" in schema and value not in schema["enum"]:
        yield f"{path}: {value!r} is not one of {schema['enum']}"
    if "pattern" in schema and not re.search(schema["pattern"], str(value)):
        yield f"{path}: {value!r} does not match {schema['pattern']}"
    if isinstance(value, dict):
        yield from _check_object(value, schema, path)
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from _check(item, schema.get("items", {}), f"{path}[{number}]")


def _check_object(value: dict[str, Any], schema: dict[str, Any], path: str) -> Iterator[str]:
    yield from (f"{path}.{name}: is required" for name in schema.get("required", ()) if name not in value)
    properties, other = schema.get("properties", {}), schema.get("additionalProperties")
    for name, item in value.items():
        if name in properties:
            yield from _check(item, properties[name], f"{path}.{name}")
        elif other:
            yield from _check(item, other, f"{path}.{name}")
        elif properties:
            yield f"{path}.{name}: is unknown"
