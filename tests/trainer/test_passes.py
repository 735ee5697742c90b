"""A model is changed by passes in a documented order, each in a file of its own."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from trainer.config.layout import Layout
from trainer.config.load import load
from trainer.models.registry import build_network
from trainer.parallel import apply
from trainer.parallel.apply import PASSES, parallelize
from trainer.parallel.engine import Engine, Recipe
from trainer.parallel.mesh import Mesh
from trainer.parallel.plain import PlainEngine

REPO = Path(__file__).resolve().parents[2]
ROW = re.compile(r"^\| `(\w+)` \| \[`\w+\.py`\]\(\.\./(trainer/parallel/\w+\.py)\) \| \S", re.MULTILINE)


def test_the_documentation_lists_the_passes_in_order_with_their_files() -> None:
    section = (REPO / "docs" / "engines.md").read_text().partition("## Passes\n")[2].partition("\n## ")[0]
    documented = ROW.findall(section)
    assert documented == [(change.__name__, str(find_file(change))) for change in PASSES]


def test_each_pass_has_a_file_of_its_own() -> None:
    files = [find_file(change) for change in PASSES]
    assert len(set(files)) == len(PASSES)
    assert Path(inspect.getfile(apply)).relative_to(REPO) not in files


def test_a_model_goes_through_all_passes_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def record(change: Any) -> Any:
        def recorded(*arguments: Any) -> None:
            calls.append(change.__name__)
            change(*arguments)

        return recorded

    monkeypatch.setattr(apply, "PASSES", tuple(record(change) for change in PASSES))
    engine = build_engine()
    assert calls == [change.__name__ for change in PASSES]
    assert isinstance(engine, PlainEngine)


def build_engine() -> Engine:
    config = load("tiny-llama", ["parallel.strategy=single", "model.layers=2"])
    recipe = Recipe(
        config.parallel, config.precision, config.compile, config.fp8, config.communication, config.optimizer
    )
    return parallelize(build_network(config), recipe, Mesh(Layout(), 0, torch.device("cpu"), uses_fully_shard=False))


def find_file(change: Any) -> Path:
    return Path(inspect.getfile(change)).relative_to(REPO)
