"""Change or remove one value in the text of a stack file; everything else, including comments, stays as it is."""

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
    """Return the text with a field set, such as `software.slurm`; `value` is YAML in one line."""
    root = _root(text)
    mapping, shared = _find_cluster(root), _find_shared(root)
    key, *below = path.split(".")
    while True:
        inner = value
        for name in reversed(below):
            inner = f"{{{name}: {inner}}}"
        child = _find(mapping, key)
        if child is None:
            return _insert(text, mapping, key, inner)
        _require_single(key, child, shared)
        if not below or not isinstance(child, yaml.MappingNode) or not child.value:
            return _replace(text, child, inner)
        mapping, (key, *below) = child, below


def remove_value(text: str, path: str) -> str:
    """Return the text without a field, and with an empty mapping if the field was alone; it may be missing.

    Raise ValueError if the field is not a single value, or if its removal would change aliases.
    """
    root, keys = _root(text), path.split(".")
    mapping, shared = _find_cluster(root), _find_shared(root)
    above: list[tuple[str, yaml.Node]] = []
    for key in keys[:-1]:
        child = _find(mapping, key)
        if not isinstance(child, yaml.MappingNode):
            return text
        above.append((key, child))
        mapping = child
    names = [name.value for name, _ in mapping.value]
    if keys[-1] not in names:
        return text
    position = names.index(keys[-1])
    name, value = mapping.value[position]
    for key, node in (*above, (keys[-1], value)):
        _require_single(key, node, shared)
    if not isinstance(value, yaml.ScalarNode) or value.start_mark.line != value.end_mark.line:
        raise ValueError(f"`{keys[-1]}` is not a single value in one line")
    start, end = name.start_mark.index, value.end_mark.index
    if len(names) == 1:
        return f"{text[:start]}{'' if mapping.flow_style else '{}'}{text[end:]}"
    if not mapping.flow_style:
        return text[: text.rfind("\n", 0, start) + 1] + text[end:].partition("\n")[2]
    if position + 1 < len(names):
        return text[:start] + text[mapping.value[position + 1][0].start_mark.index :]
    return text[: mapping.value[position - 1][1].end_mark.index] + text[end:]


def _find_cluster(root: yaml.Node | None) -> yaml.MappingNode:
    return _enter(_enter(root, "config"), CONFIG_KEY)


def _find_shared(root: yaml.Node | None) -> set[int]:
    """Return the ids of the nodes that appear more than once, by aliases."""
    visited, shared, waiting = set[int](), set[int](), [root]
    while waiting:
        node = waiting.pop()
        if id(node) in visited:
            shared.add(id(node))
            continue
        visited.add(id(node))
        if isinstance(node, yaml.MappingNode):
            waiting += [value for _, value in node.value]
        elif isinstance(node, yaml.SequenceNode):
            waiting += node.value
    return shared


def _require_single(key: str, node: yaml.Node, shared: set[int]) -> None:
    if id(node) in shared:
        raise ValueError(f"`{key}` has an anchor, so that a change would change its aliases, too")


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
