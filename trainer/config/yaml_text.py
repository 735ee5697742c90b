"""Read and write YAML as people expect it: 1e-4 is a number, and a duplicate key is an error."""

from __future__ import annotations

import re
from typing import Any

import yaml

EXPONENT = re.compile(r"^[-+]?[0-9][0-9_]*(\.[0-9_]*)?[eE][-+]?[0-9]+$")


class YamlError(Exception):
    """Text that is not YAML or has a duplicate key; the message names the line."""


def parse_yaml(text: str) -> Any:
    """Return the value of a YAML text, or raise a YamlError."""
    try:
        return yaml.load(text, _Loader)  # noqa: S506 - _Loader is a SafeLoader
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f"line {mark.line + 1}: " if mark else ""
        raise YamlError(f"{line}{getattr(error, 'problem', None) or error}") from error


def dump_yaml(tree: Any) -> str:
    """Return a value as YAML, keys in their order."""
    return yaml.dump(tree, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)


class _Loader(yaml.SafeLoader):
    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if str(key.value) in seen:
                raise yaml.constructor.ConstructorError(None, None, f"{key.value!r} is given twice", key.start_mark)
            seen.add(str(key.value))
        return super().construct_mapping(node, deep)


class _Dumper(yaml.SafeDumper):
    """A dumper that writes lists on one line."""


# PyYAML follows YAML 1.1, which requires a dot in a number with an exponent: https://yaml.org/type/float.html
for yaml_class in (_Loader, _Dumper):
    yaml_class.add_implicit_resolver("tag:yaml.org,2002:float", EXPONENT, list("-+0123456789"))
_Dumper.add_representer(
    list, lambda dumper, items: dumper.represent_sequence("tag:yaml.org,2002:seq", items, flow_style=True)
)
