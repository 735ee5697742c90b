"""The stack file that realises a plan: values changed where they stand, comments and order kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil
from typing import Any

import yaml

from cluster.spec import ClusterSpec
from cluster.spec.load import load
from cluster.spec.stack_file import CONFIG_KEY, Loader

Edit = tuple[Sequence[str], str | int]
"""The path of a value below the cluster, and what it becomes."""
ROOT = ("config", CONFIG_KEY)


def edits(spec: ClusterSpec, group: str, wanted: Mapping[str, Any]) -> list[Edit]:
    """`wanted`: nodes, instance, purchase, fabric."""
    old = spec.groups[group]
    where = ("groups", group)
    found: list[Edit] = []
    if old.instance_type != wanted["instance"]:
        found.append(((*where, "instance_type"), wanted["instance"]))
    counted = "count" if old.count is not None else "max"
    if getattr(old, counted) != wanted["nodes"]:
        found.append(((*where, counted), wanted["nodes"]))
    if old.min is not None and old.min > wanted["nodes"]:
        found.append(((*where, "min"), wanted["nodes"]))
    if old.fabric != wanted["fabric"]:
        found.append(((*where, "fabric"), wanted["fabric"]))
    if old.capacity.kind != wanted["purchase"]:
        found.append(((*where, "capacity", "kind"), wanted["purchase"]))
        if old.capacity.fallback:
            found.append(((*where, "capacity", "fallback"), "[]"))
    return found


def raised(spec: ClusterSpec, usd_per_hour: float) -> list[Edit]:
    """A budget that the plan breaks becomes what it takes."""
    allowed = spec.budget.usd_per_hour
    return [(("budget", "usd_per_hour"), ceil(usd_per_hour))] if allowed is not None and allowed < usd_per_hour else []


def told(changes: Sequence[Edit]) -> str:
    return ", ".join(f"{'.'.join(path)}: {value}" for path, value in changes) or "as it is"


def edited(text: str, changes: Sequence[Edit]) -> str:
    for path, value in changes:
        text = _set(text, (*ROOT, *path), str(value))
    return text


def loaded(text: str) -> ClusterSpec:
    document = yaml.load(text, Loader=Loader)  # noqa: S506  # a safe loader that reads numbers as Pulumi does
    return load(document[ROOT[0]][ROOT[1]])


def _set(text: str, path: Sequence[str], value: str) -> str:
    """Replaces the scalar at `path`, or adds what is missing of the path to the deepest mapping that is there."""
    node: Any = yaml.compose(text, Loader=yaml.SafeLoader)
    for depth, key in enumerate(path):
        inner = next((below for name, below in node.value if name.value == key), None)
        if inner is None:
            return _add(text, node, path[depth:], value)
        if not isinstance(inner, yaml.MappingNode):
            start, end = inner.start_mark.index, inner.end_mark.index
            # A list of lines ends where the next key begins.
            return text[:start] + value + text[start + len(text[start:end].rstrip()) :]
        node = inner
    raise ValueError(f"{'.'.join(path)} is a mapping")


def _add(text: str, parent: yaml.MappingNode, path: Sequence[str], value: str) -> str:
    *above, last = path
    entry = f"{last}: {value}"
    for key in reversed(above):
        entry = f"{key}: {{{entry}}}"
    if parent.flow_style:
        end = parent.end_mark.index - 1
        return f"{text[:end].rstrip()}{', ' if parent.value else ''}{entry}{text[end:]}"
    first = parent.value[0][0].start_mark
    return f"{text[: first.index]}{entry}\n{' ' * first.column}{text[first.index :]}"
