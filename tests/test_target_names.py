"""Code outside infra/targets never names a target: differences between targets belong to the target itself."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from infra.targets.registry import targets

ROOT = Path(__file__).parents[1]
ROOMS = ("cluster", "slurm", "bootstrap", "infra", "muster", "trainer", "simulator", "setup", "release")
FILES = [
    path
    for room in ROOMS
    for path in sorted((ROOT / room).rglob("*.py"))
    if not path.is_relative_to(ROOT / "infra" / "targets")
]


def test_no_target_is_named() -> None:
    named = [
        f"{path.relative_to(ROOT)}:{line}: {text}"
        for path in FILES
        for line, text in _mentions(path.read_text(encoding="utf-8"))
    ]
    assert named == [], "ask the target through infra.targets.target instead of naming it"


def _mentions(source: str) -> Iterator[tuple[int, str]]:
    """Yield line and text where code imports a target's package or uses its name as a value or attribute."""
    if not re.search(rf"\b({'|'.join(targets())})\b", source):
        return
    tree = ast.parse(source)
    package = re.compile(rf"infra\.targets\.({'|'.join(targets())})\b")
    # The default stack has the same name as the target that it uses.
    default_stack = [node.value for node in ast.walk(tree) if isinstance(node, ast.Assign) and _is_default_stack(node)]
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and package.match(f"{node.module}."):
            yield node.lineno, node.module or ""
        elif isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names if package.match(alias.name))
        elif isinstance(node, ast.Constant) and node.value in targets() and node not in default_stack:
            yield node.lineno, repr(node.value)
        elif isinstance(node, ast.Attribute) and node.attr in targets():
            yield node.lineno, f".{node.attr}"


def _is_default_stack(node: ast.Assign) -> bool:
    return [target.id for target in node.targets if isinstance(target, ast.Name)] == ["DEFAULT_STACK"]
