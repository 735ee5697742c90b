"""Edit a stack file so that it describes a planned cluster; comments, order and quotes stay as they are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from io import StringIO
from math import ceil
from typing import Any

import yaml
from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq

from cluster.spec import ClusterSpec
from cluster.spec.stack_file import CONFIG_KEY, Loader
from infra.targets.registry import load_spec

Edit = tuple[Sequence[str], str | int | list[str]]
"""The path of a value below the cluster, and its new value."""
ROOT = ("config", CONFIG_KEY)
UNLIMITED_WIDTH = 1_000_000
"""Columns after which ruamel.yaml would wrap a line."""


def list_edits(spec: ClusterSpec, group: str, planned: Mapping[str, Any]) -> list[Edit]:
    """Return the edits that make a node group as planned: `nodes`, `instance`, `purchase` and `fabric`."""
    old = spec.groups[group]
    where = ("groups", group)
    edits: list[Edit] = []
    if old.instance_type != planned["instance"]:
        edits.append(((*where, "instance_type"), planned["instance"]))
        if old.capacity.fallback_types:
            edits.append(((*where, "capacity", "fallback_types"), []))
    size_field = "count" if old.count is not None else "max"
    if getattr(old, size_field) != planned["nodes"]:
        edits.append(((*where, size_field), planned["nodes"]))
    if old.min is not None and old.min > planned["nodes"]:
        edits.append(((*where, "min"), planned["nodes"]))
    if old.fabric != planned["fabric"]:
        edits.append(((*where, "fabric"), planned["fabric"]))
    if old.capacity.kind != planned["purchase"]:
        edits.append(((*where, "capacity", "kind"), planned["purchase"]))
        if old.capacity.fallback:
            edits.append(((*where, "capacity", "fallback"), []))
    return edits


def raise_budget(spec: ClusterSpec, usd_per_hour: float) -> list[Edit]:
    """Return the edit that raises a budget that the plan exceeds."""
    allowed = spec.budget.usd_per_hour
    return [(("budget", "usd_per_hour"), ceil(usd_per_hour))] if allowed is not None and allowed < usd_per_hour else []


def describe_edits(edits: Sequence[Edit]) -> str:
    """Return the edits as one line of text."""
    return ", ".join(f"{'.'.join(path)}: {value}" for path, value in edits) or "unchanged"


def apply_edits(text: str, edits: Sequence[Edit]) -> str:
    """Return the text of a stack file with the edits applied and everything else as it was."""
    if not edits:
        return text
    editor = YAML(typ="rt")
    editor.preserve_quotes = True
    editor.width = UNLIMITED_WIDTH
    editor.explicit_start = text.startswith("---")
    document = editor.load(text)
    offset = next(_list_offsets(document), 0)
    editor.indent(mapping=document[ROOT[0]].lc.col, sequence=offset + 2, offset=offset)
    for path, value in edits:
        _set(document, (*ROOT, *path), value)
    output = StringIO()
    editor.dump(document, output)
    return output.getvalue()


def load_text(text: str) -> ClusterSpec:
    """Return the description in the text of a stack file."""
    document = yaml.load(text, Loader=Loader)  # noqa: S506  # a safe loader that reads numbers as Pulumi does
    return load_spec(document[ROOT[0]][ROOT[1]])


def _list_offsets(mapping: CommentedMap) -> Iterator[int]:
    """Yield how far the dashes of each block list are indented below its key."""
    for value in mapping.values():
        if isinstance(value, CommentedSeq) and not value.fa.flow_style():
            yield value.lc.col - mapping.lc.col
        elif isinstance(value, CommentedMap):
            yield from _list_offsets(value)


def _set(document: CommentedMap, path: Sequence[str], value: object) -> None:
    """Set the value at `path`; mappings on the way that are missing are added in flow style."""
    *parents, last = path
    mapping = document
    for key in parents:
        if mapping.get(key) is None:
            _add(mapping, key, CommentedMap())
        mapping = mapping[key]
    if last in mapping:
        mapping[last] = value
    else:
        _add(mapping, last, value)


def _add(mapping: CommentedMap, key: str, value: object) -> None:
    if not mapping:
        mapping.fa.set_flow_style()
    if mapping.fa.flow_style():
        mapping[key] = value
    else:
        # First, because comments after the last key may belong to what follows the mapping.
        mapping.insert(0, key, value)
