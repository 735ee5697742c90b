"""No file imports itself through other files; imports inside functions count too."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.statements import walk_statements

ROOT = Path(__file__).parents[1]
NOT_ROOMS = {"tests", "build"}
# An import in every kind of block.
NESTED = """
import a
class C:
    import b
    async def f(self):
        import c
        async with x:
            import d
        async for y in x:
            import e
        else:
            import f
if x:
    import g
else:
    while x:
        import h
try:
    import i
except E:
    import j
else:
    import k
finally:
    import l
match x:
    case 1:
        import m
"""


def name_module(path: Path) -> str:
    """Return the dotted name of a source file."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {
    name_module(path): path
    for room in sorted(ROOT.iterdir())
    if (room / "__init__.py").is_file() and room.name not in NOT_ROOMS
    for path in sorted(room.rglob("*.py"))
}


def test_there_are_no_import_circles() -> None:
    assert find_circles({module: set(list_imports(module)) - {module} for module in MODULES}) == []


def test_shared_import_is_not_a_circle() -> None:
    graph = {"a": {"b", "d"}, "b": {"c", "d"}, "c": {"a"}, "d": {"e"}, "e": set[str]()}
    assert find_circles(graph) == [{"a", "b", "c"}]


def test_imports_at_any_depth_are_read() -> None:
    tree = ast.parse(NESTED)
    names = {alias.name for node in walk_statements(tree) if isinstance(node, ast.Import) for alias in node.names}
    assert names == {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    assert names == set("abcdefghijklm")


def list_imports(module: str) -> Iterator[str]:
    """Yield the modules of this repository that a file imports anywhere; `from a import b` is a.b if that is a file."""
    path = MODULES[module]
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in walk_statements(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in MODULES)
        elif isinstance(node, ast.ImportFrom):
            base = resolve_relative(node, package)
            names = (f"{base}.{alias.name}" for alias in node.names)
            yield from (name for name in ((name if name in MODULES else base) for name in names) if name in MODULES)


def resolve_relative(node: ast.ImportFrom, package: str) -> str:
    """Return the absolute name of the module that a `from` statement names."""
    if not node.level:
        return node.module or ""
    parts = package.split(".")
    return ".".join([*parts[: len(parts) - node.level + 1], *([node.module] if node.module else [])])


def find_circles(graph: dict[str, set[str]]) -> list[set[str]]:
    """Return the groups of modules that import each other, directly or through others."""
    reachable = {module: list_reachable(graph, module) for module in graph}
    circles: list[set[str]] = []
    for module in graph:
        circle = {other for other in reachable[module] if module in reachable[other]}
        if circle and circle not in circles:
            circles.append(circle)
    return circles


def list_reachable(graph: dict[str, set[str]], start: str) -> set[str]:
    """Return the modules that `start` imports, directly or through others."""
    reached: set[str] = set()
    waiting = [start]
    while waiting:
        for module in graph[waiting.pop()] - reached:
            reached.add(module)
            waiting.append(module)
    return reached
