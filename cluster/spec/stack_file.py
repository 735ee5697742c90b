"""Read a stack file: YAML syntax, duplicate keys, and the path to `config: muster:cluster`; replace its text."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml

from cluster.spec.issue import Issue, SpecError, error

CONFIG_KEY = "muster:cluster"
START = (
    f"start with `config:` and, under it, `  {CONFIG_KEY}:`; the smallest example is stacks/Pulumi.local-required.yaml"
)


class Loader(yaml.SafeLoader):
    """A YAML loader that reads values as Pulumi does: 1:00:00 and `no` are text, not 3600 and false."""


Loader.yaml_implicit_resolvers = {}
for _tag, _pattern, _first in (
    ("null", r"~|null|Null|NULL|", [*"~nN", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?(0|[1-9][0-9]*)", list("-+0123456789")),
    (
        "float",
        r"[-+]?(\.[0-9]+|[0-9]+\.[0-9]*)([eE][-+][0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        list("-+.0123456789"),
    ),
    ("merge", r"<<", ["<"]),
):
    Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(f"^(?:{_pattern})$"), _first)


def cluster_of(stack_file: Path) -> Any:
    """Return the data under `config: muster:cluster`; raise SpecError if the file does not have it."""
    document = _parse(stack_file.name, _text(stack_file))
    name = stack_file.name
    if document is None:
        raise SpecError([error("empty_file", name, "the file is empty", START)])
    if not isinstance(document, dict):
        raise SpecError([error("not_a_mapping", name, "the file is not a mapping", START)])
    config = document.get("config")
    if not isinstance(config, dict):
        raise SpecError([error("no_config", name, "`config` is missing or not a mapping", START)])
    if CONFIG_KEY not in config:
        raise SpecError([_no_cluster(name, config)])
    return config[CONFIG_KEY]


def replace_stack_file(stack_file: Path, text: str) -> None:
    """Replace the text of a stack file, all or nothing; its mode and owner stay, and a link stays a link.

    The file belongs to the user: neither a kill nor a full disk may lose it.
    """
    file = stack_file.resolve()
    before, new = file.stat(), file.with_name(f".{file.name}.{os.getpid()}")
    try:
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as stream:
            stream.write(text)
            # Only root can keep another owner. The owner comes first: a change of it may clear bits of the mode.
            with suppress(PermissionError):
                os.fchown(stream.fileno(), before.st_uid, before.st_gid)
            os.fchmod(stream.fileno(), before.st_mode & 0o7777)
            stream.flush()
            os.fsync(stream.fileno())
        new.replace(file)
    except BaseException:
        new.unlink(missing_ok=True)
        raise


def _text(stack_file: Path) -> str:
    where = stack_file.name
    try:
        return stack_file.read_text(encoding="utf-8")
    except FileNotFoundError:
        stack_files = sorted(f.name for f in stack_file.parent.glob("Pulumi.*.yaml"))
        message = f"there is no such file in {stack_file.parent}; stack files there: {', '.join(stack_files) or 'none'}"
        raise SpecError([error("no_file", where, message, "use one of them, or create this file")]) from None
    except UnicodeDecodeError as bad:
        message = f"byte {bad.start} is not UTF-8 text"
        raise SpecError([error("not_text", where, message, "save the file as UTF-8")]) from None
    except OSError as bad:
        fix = "make the file readable"
        raise SpecError([error("unreadable", where, f"cannot be read: {bad.strerror}", fix)]) from None


def _parse(name: str, text: str) -> Any:
    try:
        loader = Loader(text)
        root = loader.get_single_node()
        duplicates = list(_duplicates(name, root)) if root else []
        if duplicates:
            raise SpecError(duplicates)
        return loader.construct_document(root) if root else None
    except yaml.MarkedYAMLError as bad:
        raise SpecError([_syntax(name, bad)]) from None
    except yaml.YAMLError as bad:
        message = f"not YAML: {str(bad).splitlines()[0]}"
        raise SpecError([error("syntax", name, message, "remove characters that are not plain text")]) from None
    except RecursionError:
        fix = "reduce the nesting; stacks/ has examples"
        raise SpecError([error("syntax", name, "nested too deeply", fix)]) from None


def _syntax(name: str, bad: yaml.MarkedYAMLError) -> Issue:
    mark = bad.problem_mark
    where = f"{name}, line {mark.line + 1}, column {mark.column + 1}" if mark else name
    fix = "correct the YAML there: indentation in spaces, `key: value`, quotes and brackets closed"
    return error("syntax", where, f"not YAML: {bad.problem or bad.context}", fix)


def _duplicates(name: str, root: yaml.Node) -> Iterator[Issue]:
    """Yield keys that appear twice in a mapping; PyYAML would silently keep the last."""
    visited: set[int] = set()
    waiting: list[yaml.Node] = [root]
    while waiting:
        node = waiting.pop()
        if id(node) in visited:
            continue
        visited.add(id(node))
        if isinstance(node, yaml.SequenceNode):
            waiting += reversed(node.value)
        elif isinstance(node, yaml.MappingNode):
            waiting += [value for _, value in reversed(node.value)]
            yield from _duplicates_in(name, node)


def _duplicates_in(name: str, mapping: yaml.MappingNode) -> Iterator[Issue]:
    first: dict[str, int] = {}
    for key, _ in mapping.value:
        if not isinstance(key, yaml.ScalarNode):
            continue
        line = key.start_mark.line + 1
        if key.value in first:
            where = f"{name}, line {line}, column {key.start_mark.column + 1}"
            message = f"duplicate key `{key.value}`, first set in line {first[key.value]}"
            yield error("duplicate_key", where, message, "remove one of the two")
        first.setdefault(key.value, line)


def _no_cluster(name: str, config: dict[Any, Any]) -> Issue:
    keys = sorted(str(key) for key in config)
    near = get_close_matches(CONFIG_KEY, keys, n=1)
    fix = f"rename `{near[0]}` to `{CONFIG_KEY}`" if near else START
    return error("no_cluster", name, f"`config` has no `{CONFIG_KEY}`; it has: {', '.join(keys) or 'nothing'}", fix)
