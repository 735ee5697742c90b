"""Nothing that arrives from another rank is unpickled: whoever can send to a rank could run code in it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TRAINER_SOURCES = sorted((ROOT / "trainer").rglob("*.py"))
OBJECT_COLLECTIVES = {
    "all_gather_object",
    "broadcast_object_list",
    "gather_object",
    "recv_object_list",
    "scatter_object_list",
    "send_object_list",
}
# torch.distributed.checkpoint exchanges its plans by object collectives, unless it is told to plan alone.
CHECKPOINT_CALLS = {"state_dict_loader", "state_dict_saver", "dcp"}


@pytest.mark.attack(2)
def test_the_trainer_has_no_object_collectives() -> None:
    assert TRAINER_SOURCES
    uses = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in TRAINER_SOURCES
        for line, name in list_pickling(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert uses == []


@pytest.mark.parametrize(
    "source",
    [
        "dist.all_gather_object(values, value)",
        "torch.distributed.broadcast_object_list(values)",
        "from torch.distributed import scatter_object_list as scatter",
        "getattr(dist, 'gather_object')(value)",
        "send_object_list",
        "import pickle",
        "from pickle import loads",
        "dcp.load(tensors)",
        "state_dict_loader.load(tensors, no_dist=group is None)",
    ],
)
def test_every_form_is_recognised(source: str) -> None:
    assert list(list_pickling(ast.parse(source)))


def test_a_checkpoint_that_is_planned_alone_is_allowed() -> None:
    assert not list(list_pickling(ast.parse("state_dict_loader.load(tensors, no_dist=True)")))


def list_pickling(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the line and the name of whatever pickles between ranks."""
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(attr=name) | ast.Name(id=name) | ast.Constant(value=str(name)):
                if name in OBJECT_COLLECTIVES:
                    yield node.lineno, name
            case ast.ImportFrom(module=module, names=aliases):
                names = {alias.name for alias in aliases} & OBJECT_COLLECTIVES
                yield from ((node.lineno, name) for name in [*names, *(["pickle"] if module == "pickle" else [])])
            case ast.Import(names=aliases):
                yield from ((node.lineno, alias.name) for alias in aliases if alias.name == "pickle")
            case ast.Call(func=ast.Attribute(value=ast.Name(id=module), attr=name), keywords=keywords):
                if module in CHECKPOINT_CALLS and not any(map(is_alone, keywords)):
                    yield node.lineno, f"{module}.{name}"


def is_alone(keyword: ast.keyword) -> bool:
    return keyword.arg == "no_dist" and isinstance(keyword.value, ast.Constant) and keyword.value.value is True
