"""Find the tests that are marked with rows of the fault matrix, or with attacks, by reading their sources.

Sources are not imported: the trainer's tests need torch, and those of clusters need Docker.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from tests.fault_matrix.rows import Place

REPO = Path(__file__).resolve().parents[2]
MARKER = "fault"
# The first prefix that fits; a marker's `place` takes precedence.
_PLACES: tuple[tuple[str, Place], ...] = (
    ("tests/faults/", "local cluster"),
    ("tests/e2e/test_virtual_machines", "virtual machines"),
    ("tests/e2e/", "local cluster"),
    ("tests/engine/", "real engine"),
    ("tests/infra/targets/aws/rehearse/", "AWS rehearsal"),
    ("tests/infra/targets/aws/with_engine/", "real engine"),
    ("tests/infra/targets/aws/", "simulated AWS"),
    ("tests/trainer/", "real processes"),
    ("", "unit"),
)
_BOX = "tests/trainer/"


@dataclass(frozen=True)
class MarkedTest:
    """A test that proves rows of a table: of the fault matrix, or of the attacks."""

    path: str
    name: str
    rows: tuple[int, ...]
    place: Place
    nightly: bool
    """Whether it runs only by night, and not in `make test`."""
    case: str = ""
    """The parameter of the test that proves the rows; empty if every parameter does."""

    @property
    def id(self) -> str:
        return f"{self.path}::{self.name}"

    @property
    def command(self) -> str:
        """Return the command that runs only this test."""
        runner = "tests.trainer_box" if self.path.startswith(_BOX) else "pytest"
        case = f"[{self.case}]" if self.case else ""
        word = f"'{self.id}{case}'" if case else self.id
        return f".venv/bin/python -m {runner} {word}"


def list_marked_tests(root: Path = REPO, marker: str = MARKER) -> list[MarkedTest]:
    """Return all tests with a marker, sorted by file and line."""
    files = sorted(root.glob("tests/**/test_*.py"))
    return [test for file in files for test in _read(file.read_text(), file.relative_to(root).as_posix(), marker)]


def _read(text: str, path: str, marker: str) -> Iterator[MarkedTest]:
    if f"mark.{marker}(" not in text:
        return
    tree = ast.parse(text, path)
    module_marks = [node for node in tree.body if isinstance(node, ast.Assign) and _binds(node, "pytestmark")]
    by_night = any(_names_marker(node.value, "nightly") for node in module_marks)
    for function in tree.body:
        if not isinstance(function, ast.FunctionDef):
            continue
        nightly = by_night or any(_is_marker(decorator, "nightly") for decorator in function.decorator_list)
        for decorator in function.decorator_list:
            if isinstance(decorator, ast.Call) and _is_marker(decorator.func, marker):
                yield _make(decorator, path, function.name, nightly, marker)


def _make(call: ast.Call, path: str, name: str, nightly: bool, marker: str) -> MarkedTest:
    rows = tuple(ast.literal_eval(argument) for argument in call.args)
    options = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.keywords}
    unknown = set(options) - {"case", "place"}
    place = options.get("place") or next(place for prefix, place in _PLACES if path.startswith(prefix))
    if unknown or place not in get_args(Place) or not rows or not all(isinstance(row, int) for row in rows):
        raise ValueError(f"{path}::{name}: `{ast.unparse(call)}` is not {marker}(row, ..., case=..., place=...)")
    return MarkedTest(path, name, rows, place, nightly, options.get("case", ""))


def _binds(node: ast.Assign, name: str) -> bool:
    return any(isinstance(target, ast.Name) and target.id == name for target in node.targets)


def _names_marker(node: ast.AST, name: str) -> bool:
    return any(_is_marker(child, name) for child in ast.walk(node))


def _is_marker(node: ast.AST, name: str) -> bool:
    """Return whether a node is `pytest.mark.<name>`, or such a marker under a name of its module (NIGHTLY)."""
    return isinstance(node, ast.Attribute) and node.attr == name and ast.unparse(node) == f"pytest.mark.{name}"
