"""The statements of a source file, without their expressions: most of a syntax tree is expressions."""

from __future__ import annotations

import ast
from collections.abc import Iterator

# The fields of a node that hold statements, or handlers and cases with statements in them.
_BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")


def walk_statements(tree: ast.Module) -> Iterator[ast.AST]:
    """Yield every statement at any depth, in no particular order; imports can only be statements."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        for block in _BLOCKS:
            waiting.extend(getattr(node, block, ()))
