"""Change one value in the text of a stack file; everything else, including comments, stays as it is."""

from __future__ import annotations

import json
from collections.abc import Iterable

import yaml

from cluster.spec.stack_file import CONFIG_KEY, Loader


def set_release(text: str, release: str) -> str:
    """Return the text of a stack file with `software.slurm` set; raise ValueError if the file has an unusual form."""
    return set_value(text, "software.slurm", json.dumps(release))


def set_lines(text: str, lines: Iterable[str]) -> str:
    """Return the text with lines at its top level, each in place of an earlier one with the same key."""
    rows = text.rstrip("\n").split("\n")
    for line in lines:
        key = f"{line.partition(':')[0]}:"
        rows = [line if row.startswith(key) else row for row in rows]
        rows += [] if line in rows else [line]
    return "\n".join([*rows, ""])


def set_value(text: str, path: str, value: str) -> str:
    """Return the text with a field of a section set, such as `software.slurm`; `value` is YAML in one line."""
    section_name, _, field = path.partition(".")
    cluster = _enter(_enter(_root(text), "config"), CONFIG_KEY)
    section = _find(cluster, section_name)
    if section is None:
        return _insert(text, cluster, section_name, f"{{{field}: {value}}}")
    if not isinstance(section, yaml.MappingNode) or not section.value:
        return _replace(text, section, f"{{{field}: {value}}}")
    written = _find(section, field)
    return _insert(text, section, field, value) if written is None else _replace(text, written, value)


def _root(text: str) -> yaml.Node | None:
    return Loader(text).get_single_node()


def _enter(node: yaml.Node | None, key: str) -> yaml.MappingNode:
    child = _find(node, key) if isinstance(node, yaml.MappingNode) else None
    if not isinstance(child, yaml.MappingNode) or not child.value:
        raise ValueError(f"`{key}` is missing or not a mapping")
    return child


def _find(mapping: yaml.MappingNode, key: str) -> yaml.Node | None:
    return next((value for name, value in mapping.value if name.value == key), None)


def _insert(text: str, mapping: yaml.MappingNode, key: str, value: str) -> str:
    """Insert a key before the first one of a mapping, in its style."""
    first = mapping.value[0][0].start_mark
    separator = ", " if mapping.flow_style else f"\n{' ' * first.column}"
    return f"{text[: first.index]}{key}: {value}{separator}{text[first.index :]}"


def _replace(text: str, node: yaml.Node, value: str) -> str:
    start, end = node.start_mark.index, node.end_mark.index
    # A key without a value: its node has no width, and the colon needs a space.
    space = "" if start and text[start - 1].isspace() else " "
    return f"{text[:start]}{space}{value}{text[end:]}"
